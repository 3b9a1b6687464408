"""Where images come from, what is refused, and which tokens they have."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import socket
import struct
import threading
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image, ImageOps

from agentrl.chat.template import Template
from agentrl.chat.tool_call_parsers import Call
from agentrl.config.data_plane import Environment
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.seen_images import SeenImages
from agentrl.errors import ConfigError
from agentrl.images import decoding, numbered_urls, run_images, sources
from agentrl.images.patches import patches_of
from agentrl.images.processing import ImageError, Processing, Size, processing_of
from agentrl.images.sources import Limits
from agentrl.rollout import shown_images, user_code
from agentrl.rollout.shown_images import ShownImages, TemporaryShelf
from agentrl.steward import task_images
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.datasets import DatasetError, read
from agentrl.store.documents import Task
from agentrl.tokens import image_ids, image_marks
from agentrl.tokens.spans import ROOT
from agentrl.training import batch_images, initial_model
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.batch_assembly import Assembled
from agentrl.training.evaluator import has_held_out_tasks
from agentrl.training.model_check import refuse_model
from tests.images import tiny_vision
from tests.waiting import PATIENCE_S, aeventually

RED = tiny_vision.square((220, 30, 30))
NAME = "ab" * 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.write(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def how(directory: Path) -> Processing:
    found = processing_of(directory, json.loads((directory / "config.json").read_bytes()))
    assert found is not None
    return found


async def test_an_image_is_decoded_once_for_all_who_wait_also_if_the_first_of_them_is_cancelled(
    how: Processing, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, go, real = [], threading.Event(), decoding.shown

    def slow(data: bytes, to: Processing) -> decoding.Shown:
        decoded.append(data)
        assert go.wait(PATIENCE_S)
        return real(data, to)

    monkeypatch.setattr(decoding, "shown", slow)
    shelf = TemporaryShelf()
    name = (await shelf.put(RED)).id
    seen = ShownImages(shelf, how, most_bytes=1 << 20)
    waiting = [asyncio.create_task(seen.shown(name)) for _ in range(8)]
    await aeventually(lambda: bool(decoded))
    waiting[0].cancel()
    go.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert len({id(one) for one in ended[1:]}) == len(decoded) == 1


async def test_an_image_of_a_tool_is_decoded_once_and_kept_once(
    how: Processing, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, real = [], decoding.shown

    def counted(data: bytes, to: Processing) -> decoding.Shown:
        decoded.append(data)
        return real(data, to)

    monkeypatch.setattr(decoding, "shown", counted)
    shelf = TemporaryShelf()
    seen = ShownImages(shelf, how, most_bytes=1 << 20)
    name = await seen.kept(RED)
    first = await seen.shown(name)
    assert (decoded, first.ids) == ([RED], [image_ids.id_of(first.number)] * 4)
    assert await seen.kept(RED) == name
    monkeypatch.setattr(shown_images, "MOST_BYTES", len(first.png))
    other = await seen.kept(tiny_vision.square((1, 2, 3)))
    assert set(seen._known) == set(seen._used) == {other}
    assert seen._bytes == len((await seen.shown(other)).png)
    monkeypatch.setattr(shown_images, "MOST_TOKENS", 3)
    with pytest.raises(ImageError, match="has 4 tokens, and at most 3 are allowed"):
        await seen.kept(tiny_vision.square((4, 5, 6)))
    assert len(shelf._images) == 2, "what no model is shown is not stored"


async def test_a_long_evaluation_keeps_its_images_out_of_the_memory() -> None:
    shelf, size = TemporaryShelf(), 1 << 20
    tracemalloc.start()
    try:
        names = [(await shelf.put(bytes([number]) * size)).id for number in range(16)]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < size
    assert [(await shelf.put(bytes([number]) * size)).number for number in (3, 15)] == [3, 15]
    found = await shelf.get(names[3])
    assert found is not None
    assert (found.data, found.number) == (b"\3" * size, 3)
    assert await shelf.get(NAME) is None


async def test_a_loop_stores_no_more_than_an_episode_may(how: Processing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_images, "MOST_OF_LOOP_BYTES", 2 * len(RED))
    mine = shown_images.EpisodeImages(ShownImages(TemporaryShelf(), how, most_bytes=1 << 20))
    text = await mine.of_loop(RED)
    (seen,) = mine.shown_in(text)
    assert mine.shown_in("before", text, text, image_marks.mark(NAME)) == [seen, seen], "and none that it was not shown"
    assert await mine.of_loop(RED) == text
    with pytest.raises(ImageError, match="more than"):
        await mine.of_loop(RED)


async def test_rows_of_a_stranger_show_no_files_outside_of_their_directory(tmp_path: Path) -> None:
    own, secret = tmp_path / "own" / "a.png", tmp_path / "secret.png"
    own.parent.mkdir()
    for place in (own, secret):
        place.write_bytes(RED)
    (link := own.with_name("link.png")).symlink_to(secret)
    tasks = [
        Task(id=f"{environment}/{place.name}", environment=environment, query=image_marks.mark(str(place)))
        for environment, place in (("stranger", own), ("stranger", secret), ("stranger", link), ("mine", secret))
    ]
    limits = Limits(within={"stranger": str(own.parent)})
    stored = await task_images.named(TemporaryShelf().put, tasks, limits)
    names = [name for task in stored for name in image_marks.names_in(task.query)]
    assert [image_marks.is_stored(name) for name in names] == [True, False, False, True]
    assert names[1] == "refused: The image secret.png is not in the directory of its environment."


def test_only_rows_of_an_environment_with_a_sandbox_are_confined_unless_the_run_file_names_them(
    tmp_path: Path,
) -> None:
    written: dict[str, Any] = {"code": "own/e.py", "sandbox": "process", "dataset": "own/d.jsonl"}
    environments = {
        "stranger": written,
        "named": written | {"dataset": "other.jsonl"},
        "mine": written | {"sandbox": "none"},
    }
    made = {name: Environment.model_validate(each) for name, each in environments.items()}
    assert run_images.limits_of(RunConfig.model_construct(model=None, environments=made)).within == {"stranger": "own"}


# ---- sizes and patches ----


def test_sizes_and_patches_are_those_of_the_model_s_processor(how: Processing) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

    for height in (3, 17, 32, 70, 333):
        for width in (5, 40, 95, 400):
            theirs = smart_resize(height, width, how.side, how.least_pixels, how.most_pixels)
            assert how.shown_size(Size(height, width)) == theirs
    theirs = Qwen2VLImageProcessorPil(**tiny_vision.processor())
    for kind, size in (("PNG", (70, 41)), ("JPEG", (33, 200)), ("WEBP", (32, 32))):
        data = tiny_vision.square((9, 99, 200), *size, kind)
        shown = decoding.shown(data, how)
        ours = patches_of(shown.png, how)
        expected = theirs(images=Image.open(io.BytesIO(data)), return_tensors="np")
        assert ours.frames == tuple(expected["image_grid_thw"][0])
        assert shown.tokens == ours.tokens == len(expected["pixel_values"]) // how.merge**2
        np.testing.assert_array_equal(ours.values, expected["pixel_values"])


def test_fewer_pixels_are_fewer_tokens(how: Processing) -> None:
    data = tiny_vision.square((1, 2, 3), 96, 96)
    assert decoding.shown(data, how).tokens == 36
    assert decoding.shown(data, how.limited(48 * 48)).tokens == 9
    assert how.limited(0) == how.limited(10**9) == how


# ---- what is refused ----


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is as large as this."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def tiff() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (32, 32)).save(written, "TIFF")
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "cannot be decoded: its 0 bytes are none of PNG"),
        (b"<svg onload='x'>", "cannot be decoded: its 16 bytes are none of PNG"),
        (tiff(), "bytes are none of PNG"),
        (RED[:70], "cannot be decoded"),
        (RED[:30] + b"\x00" * 40 + RED[70:], "cannot be decoded"),
        (claimed(10_000, 10_000), "10000x10000, and more than"),
        (claimed(30_000, 30_000), "could be decompression bomb"),
        (claimed(40, 10_000), "one side is more than 200 times the other"),
        (claimed(2_000, 2_000), "cannot be decoded"),
    ],
)
def test_what_is_no_image_is_one_sentence(data: bytes, sentence: str, how: Processing) -> None:
    with pytest.raises(ImageError) as refused:
        decoding.shown(data, how)
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str, how: Processing) -> None:
    drawn = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    drawn.paste((0, 0, 0, 255), (0, 0, 32, 64))
    written = io.BytesIO()
    drawn.convert(mode).save(written, "PNG")
    seen = Image.open(io.BytesIO(decoding.shown(written.getvalue(), how).png))
    assert seen.mode == "RGB"
    assert seen.getpixel((1, seen.height // 2)) == (0, 0, 0)
    assert seen.getpixel((seen.width - 2, seen.height // 2)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_shown_upright_as_its_camera_says(orientation: int, how: Processing) -> None:
    drawn = Image.new("RGB", (96, 64), (255, 255, 255))
    drawn.paste((200, 0, 0), (0, 0, 48, 32))
    exif = Image.Exif()
    exif[0x0112] = orientation
    written = io.BytesIO()
    drawn.save(written, "PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(written.getvalue())))
    shown = decoding.shown(written.getvalue(), how)
    assert shown.size == Size(upright.height, upright.width)
    seen = Image.open(io.BytesIO(shown.png))
    np.testing.assert_array_equal(np.asarray(seen), np.asarray(upright))


def test_grey_of_sixteen_bits_keeps_its_shades(how: Processing) -> None:
    shades = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    written = io.BytesIO()
    Image.fromarray(shades).save(written, "PNG")
    seen = np.asarray(Image.open(io.BytesIO(decoding.shown(written.getvalue(), how).png)))
    assert np.abs(seen[..., 0].astype(int) - (shades >> 8)).max() <= 1


def test_broken_words_of_a_camera_hide_no_image(how: Processing) -> None:
    written = io.BytesIO()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(written, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert decoding.shown(written.getvalue(), how).size == Size(64, 64)


def test_patches_are_made_of_images_in_the_size_that_the_model_sees_only(how: Processing) -> None:
    for data in (tiny_vision.square((1, 2, 3), 41, 32), tiny_vision.square((1, 2, 3), 960, 960), RED[:60], b"GIF89a"):
        with pytest.raises(ImageError):
            patches_of(data, how)
    seen = SeenImages()
    assert seen.patches({7: RED}, how)[7].tokens == 4
    with pytest.raises(ImageError, match="came with other bytes before"):
        seen.patches({7: tiny_vision.square((1, 2, 3))}, how)


# ---- where they come from ----


class Pages(BaseHTTPRequestHandler):
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        if self.path == "/gone.png" or (self.path == "/restarts.png" and self.asked[self.path] < 3):
            self.send_error(404 if self.path == "/gone.png" else 503)
        elif self.path in ("/red.png", "/zipped.png", "/restarts.png"):
            self.send_response(200)
            if self.path == "/zipped.png":
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(RED)
        else:
            self.send_response(302)
            self.send_header("Location", "/red.png")
            self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Not on the screen of the tests."""


@pytest.fixture
def server() -> Iterator[str]:
    Pages.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Pages) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


async def test_addresses_are_asked_if_their_origin_is_listed(server: str, tmp_path: Path) -> None:
    limits = Limits(bytes=1000, origins=(server,))
    assert await sources.bytes_of(f"{server}/red.png", limits) == RED
    (tmp_path / "red.png").write_bytes(RED)
    assert await sources.bytes_of(str(tmp_path / "red.png"), limits) == RED
    data = f"data:image/png;base64,{base64.b64encode(RED).decode()}"
    assert await sources.bytes_of(data, limits) == RED
    for source, few, sentence in (
        (f"{server}/red.png", Limits(origins=("http://127.0.0.1", "https://example.org")), "origins does not list"),
        (f"{server}/moved.png", limits, "answers 302 instead of an image"),
        (f"{server}/zipped.png", limits, "in the encoding 'gzip'"),
        (f"{server}/red.png", Limits(bytes=50, origins=(server,)), "more than 50 bytes"),
        (str(tmp_path / "red.png"), Limits(bytes=50), "more than 50 bytes"),
        (data, Limits(bytes=50), "more than 50 bytes"),
        ("data:;base64,@@@@", limits, "is not Base64"),
        (str(tmp_path / "gone.png"), limits, "cannot be read"),
    ):
        with pytest.raises(ImageError, match=sentence):
            await sources.bytes_of(source, few)
    for value, sentence in (
        ("http://[1/red.png", "is no address"),
        ("http://example.org:port/red.png", "is no address"),
        ("ftp://example.org/red.png", "neither http nor https"),
    ):
        with pytest.raises(ImageError, match=sentence):
            sources.source_of(value, beside=tmp_path)
    assert sources.source_of("HTTPS://example.org/A.png", beside=tmp_path) == "https://example.org/A.png"


async def test_an_outage_of_an_address_costs_no_task(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_images, "FIRST_PAUSE_S", 0.01)
    limits = Limits(origins=(server,))
    asked = [Task(id=name, query=image_marks.mark(f"{server}/{name}.png")) for name in ("gone", "restarts")]
    gone, restarted = await task_images.named(TemporaryShelf().put, asked, limits, patience_s=PATIENCE_S)
    assert image_marks.names_in(restarted.query) == [hashlib.sha256(RED).hexdigest()]
    assert image_marks.names_in(gone.query) == [f"refused: {server} answers 404 instead of an image."]
    assert Pages.asked == {"/gone.png": 1, "/restarts.png": 3}, "an answer for good is asked for once"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    away = [Task(id="away", query=image_marks.mark(f"{address}/a.png"))]
    [refused] = await task_images.named(TemporaryShelf().put, away, Limits(origins=(address,)), patience_s=0.03)
    assert image_marks.names_in(refused.query)[0].startswith(f"refused: {address} gives no image")


def test_rows_name_images_in_messages_and_in_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(RED)
    mark = image_marks.mark(str(tmp_path / "a.png"))
    parts = [
        {"type": "text", "text": "Look\ufffc: "},
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": "https://example.org/b.png"}},
    ]
    rows = [
        {"messages": [{"role": "user", "content": parts}]},
        {"problem": "<image> is what?", "images": ["a.png"], "answer": "red"},
        {"problem": "What?", "images": [{"path": "a.png"}, "a.png"]},
        {"problem": "What?", "images": 3},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(file)
    assert found[0].query == f"Look\ufffd: {mark}{image_marks.mark('https://example.org/b.png')}"
    assert found[1].query == f"{mark} is what?"
    assert (found[1].extra, found[0].extra) == ({}, {}), "what images have is not stored twice"
    assert found[2].query == f"{mark}{mark}What?"
    assert found[3].query == "What?"
    assert found[3].extra == {"images": 3}
    for row, sentence in (
        ({"problem": "<image> or <image>", "images": ["a.png"]}, "has 1 images, and the query 2 times"),
        ({"problem": "x", "images": ["ftp://a/b"]}, "neither http nor https"),
        ({"messages": [{"role": "system", "content": parts}, *rows[0]["messages"]]}, "only messages of the user may"),
    ):
        file.write_text(json.dumps(row))
        with pytest.raises(DatasetError, match=sentence):
            read(file)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"training": {"parallel": {"shard": 2}, "groups": 4}}, ""),
        ({"training": {"parallel": {"tensor": 2}, "groups": 4}}, "training.parallel.tensor: 2 is not possible"),
        ({"training": {"lora": {"rank": 4}}}, ""),
        (
            {"training": {"lora": {"rank": 4}, "publication": {"adapters": "apart"}}, "engines": {"kind": "sglang"}},
            "only embedded engines load adapters",
        ),
        ({"training": {"advantage": "gae"}}, "training.advantage: models that read images have no critic"),
        ({"engines": {"kind": "sglang", "args": ["--device", "cpu"]}}, "vision_config.patch_size is not 14"),
        ({"engines": {"kind": "vllm", "args": []}}, "engines.kind: vllm gets no images"),
    ],
)
def test_what_models_with_images_cannot_have_is_refused(
    changes: dict[str, Any], sentence: str, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"query": "q", "answer": "a"}')
    parts = {"name": "t", "model": {"path": str(directory)}, "environments": {"e": {"dataset": "rows.jsonl"}}}
    (tmp_path / "run.yaml").write_text(json.dumps({**parts, **changes}))
    config = load_config(tmp_path / "run.yaml", environ={}).config
    with pytest.raises(ConfigError, match=sentence) if sentence else contextlib.nullcontext():
        refuse_model(config)
    mark = image_marks.mark("https://example.org/a.png")
    assert "origins does not list" in run_images.problem_of(config, mark)
    assert run_images.problem_of(config, "a text") == ""
    (tmp_path / "run.yaml").write_text(json.dumps({**parts, "model": {"build": "tiny"}}))
    tiny = load_config(tmp_path / "run.yaml", environ={}).config
    assert "the model of the run reads none" in run_images.problem_of(tiny, mark)


def test_a_host_without_the_images_of_a_dataset_reads_its_texts(directory: Path, tmp_path: Path) -> None:
    """As a trainer and a sampler on another host have it: a copy of the dataset alone."""
    parts = [{"type": "image", "image": "only/with/the/steward.png"}, {"type": "text", "text": "What is it?"}]
    rows = [
        {"messages": [{"role": "user", "content": parts}]},
        {"query": "And this?", "images": ["gone.png"], "split": "eval"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = {"name": "t", "model": {"path": str(directory)}, "environments": {"e": {"dataset": "rows.jsonl"}}}
    (tmp_path / "run.yaml").write_text(json.dumps(written))
    config = load_config(tmp_path / "run.yaml", environ={}).config
    with pytest.raises(DatasetError, match="there is no file"):
        read(tmp_path / "rows.jsonl")
    assert has_held_out_tasks(config)
    prompts = initial_model.prompts(config, directory, 4)
    template = Template.of(directory)
    assert ["What is it?" in template.tokenizer.decode(prompts[0]), len(prompts)] == [True, 2]
    user_code.load(config)


# ---- in texts and tokens ----


def test_prompts_have_the_tokens_of_their_images_and_go_on_over_turns(directory: Path) -> None:
    template = Template.of(directory)
    assert template.has_images
    tokens = {NAME: [image_ids.id_of(5)] * 4}
    mark = image_marks.mark(NAME)
    first = template.first("Be brief.", [], f"This {mark} is <|image_pad|>?", images=tokens)
    assert image_ids.numbers_in(first) == [5]
    assert first.count(image_ids.id_of(5)) == 4
    pad = template.tokenizer.control("<|image_pad|>")
    assert pad not in first, "the name of a control token in a text stays text"
    sampled = template.assistant("Which?")
    added = template.tool_results([f"{mark} and {mark}"], calls=[Call("look", {})], images=tokens)
    assert added.count(image_ids.id_of(5)) == 8
    messages = [
        {"role": "user", "content": f"This {mark} is <|image_pad|>?"},
        template.said("Which?", "Which?", []),
        {"role": "tool", "name": "look", "tool_call_id": "0" * 9, "content": f"{mark} and {mark}"},
    ]
    whole = [*first, *sampled, *added]
    again = template.rewritten([], "Be brief.", [], messages, images=tokens)
    assert template.tokenizer.decode(again) == template.tokenizer.decode(whole)
    assert [one for one in again if image_ids.is_image(one)] == [one for one in whole if image_ids.is_image(one)]
    found = dict(template.messages(first))
    assert (found["system"], found["user"]) == ("Be brief.", "This [image 0000005] is <|image_pad|>?")


def test_what_a_model_writes_shows_no_image(directory: Path) -> None:
    template = Template.of(directory)
    said = template.said(image_marks.mark(NAME), image_marks.mark(NAME), [])
    written = template.rewritten([], "", [], [{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}])
    assert not image_ids.numbers_in(written)
    cut = image_marks.mark(NAME)[:20] + " gap " + image_marks.mark(NAME)
    assert list(image_marks.pieces(image_marks.plain(cut))) == [("text", image_marks.plain(cut))]


async def test_an_image_is_stored_once_and_its_number_is_its_own(db: Database) -> None:
    first = await images.put(db, RED)
    assert (await images.put(db, RED)).number == first.number
    # Another image takes the number that the next one would have.
    wanted = tiny_vision.square((1, 2, 3))
    number = image_ids.first_number(hashlib.sha256(wanted).hexdigest())
    await db.insert_new(images.COLLECTION, [{"_id": NAME, "number": number, "data": b"x", "length": 1}])
    second = await images.put(db, wanted)
    assert second.number == number + 1
    found = await images.of_numbers(db, [first.number, second.number])
    assert {one.data for one in found.values()} == {RED, wanted}
    assert await db.count(images.COLLECTION, {}) == 3


async def test_images_of_a_step_are_decoded_side_by_side_and_records_that_they_do_not_fit_train_nothing(
    db: Database, how: Processing, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [await images.put(db, data) for data in (RED, tiny_vision.square((1, 2, 3)), RED[:70])]
    together, real = threading.Barrier(2), decoding.shown

    def shown(data: bytes, to: Processing) -> decoding.Shown:
        if data != RED[:70]:
            together.wait(PATIENCE_S)
        return real(data, to)

    monkeypatch.setattr(decoding, "shown", shown)

    def record(name: str, *of: tuple[int, int]) -> Trajectory:
        ids = [1, *(token for number, count in of for token in [2, *[image_ids.id_of(number)] * count, 3])]
        return Trajectory(record=name, segments=[Segment(parent=ROOT, ids=np.asarray(ids))])

    one, other, broken = (image.number for image in stored)
    records = [
        record("fits", (one, 4), (other, 4)),
        record("text"),
        record("another size", (one, 4), (other, 5)),
        record("broken", (one, 4), (broken, 4)),
        record("missing", (one + 1, 4)),
    ]
    whole = Assembled(Batch(step=1, base_version=1, trajectories=records, ages={}), broken=("before",))
    found = await batch_images.with_images(db, whole, how)
    assert [each.record for each in found.batch.trajectories] == ["fits", "text"]
    assert found.broken == ("before", "another size", "broken", "missing")
    assert set(found.batch.images) == {one, other}


def test_images_beside_a_call_keep_their_numbers_and_bytes() -> None:
    images = {7: b"\x89PNG", image_ids.NUMBERS: b""}
    assert numbered_urls.read(numbered_urls.written(images)) == images
    for url in ("https://example.org/a.png", "data:image/png;base64,AAAA", "data:image/png;number=7;base64,A*A="):
        with pytest.raises(ImageError, match=r"data URL|not Base64"):
            numbered_urls.read([url])
