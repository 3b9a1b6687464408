"""A model that reads images learns from tasks and tools that show them, in a whole run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.tokenizer import Tokenizer
from agentrl.store import datasets
from agentrl.tokens import image_ids, image_marks
from agentrl.tokens.binary_format import unpack_ids
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane import UP_WITHIN_S, is_served, look, no_record_is_too_old, opened, up
from tests.engines.contract import servers
from tests.images import tiny_vision
from tests.waiting import eventually

PROGRAM = Path(__file__).parent / "programs" / "colours.py"
COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}
STEPS = 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


@pytest.mark.parametrize("kind", ["embedded", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.long])])
def test_a_run_learns_from_images_of_tasks_and_tools(run: Run, kind: str) -> None:
    folder = run.file.parent
    of_sglang = (
        {"kind": "sglang", "python": servers.python(), "args": servers.ON_PROCESSORS} if kind == "sglang" else {}
    )
    tiny_vision.write(folder / "model", "qwen2_5_vl", hidden=64, patch=14 if of_sglang else tiny_vision.PATCH)
    end_often(folder / "model")
    write_tasks(folder)
    (folder / "colours.py").write_text(PROGRAM.read_text())
    run.config |= {
        "model": {"path": "model"},
        "environments": {"colours": "colours.py"},
        "sampling": {"n": 4, "max_tokens": 64, "context": 512},
        "rollout": {"concurrency": 8, "max_in_flight": 16, "episode_s": 120},
        "engines": {"slots": 8, **of_sglang},
        "training": {"steps": STEPS, "groups": 1, "learning_rate": 1e-3, "publication": {"precision": "float32"}},
    }
    up(run)
    run.wait_state("trainer-0", "stopped", within_s=UP_WITHIN_S)
    assert set(run.incarnations().values()) == {1}, "nothing died"
    found = asyncio.run(everything(run))
    assert no_record_is_too_old(found)
    assert not found["problems"]
    committed = [step for step in found["Step"] if step["status"] == "committed"]
    assert [step["step"] for step in committed] == [*range(1, STEPS + 1)]
    trained = [step for step in committed if step["records"]]
    assert trained
    assert all(math.isfinite(step["metrics"]["loss"]) for step in trained)
    # The norm is 0 in a step whose few tokens are all clipped.
    assert any(step["metrics"]["gradient_norm"] > 0 for step in trained)
    gaps = [step["metrics"]["mismatch_max"] for step in trained if "mismatch_max" in step["metrics"]]
    assert gaps
    assert max(gaps) < 1e-3, "the trainer computes the log-probs of the engine"
    # The canary of a version has prompts with an image.
    eventually(lambda: is_served(run, asyncio.run(look(run))), within_s=UP_WITHIN_S, what="the last version is served")

    numbers = {one["number"]: one for one in found["Image"]}
    assert len(numbers) == len(COLOURS) + 2, (
        "each image is stored once: three squares, the broken one, and that of the tool"
    )
    shown = [images_in(record, found) for record in found["Record"] if record["turns"] == 2]
    assert shown, [(one["turns"], one["outcome"], one["error"]) for one in found["Record"]]
    painted = {numbers[one]["_id"] for of_record in shown for one in of_record[1:]}
    assert len(painted) == 1, "the same bytes are the same image"
    assert {len(of_record) for of_record in shown} == {2}
    refused = [record for record in found["Record"] if record["outcome"] == "image_refused"]
    assert refused
    assert all("cannot be decoded" in record["error"] and not record["generated_tokens"] for record in refused)

    record = next(record for record in found["Record"] if record["turns"] == 2)
    story = run.cli("records", "show", record["_id"])
    assert story["task"]["query"].startswith("[image 4")
    assert "x32 png" in story["task"]["query"]
    [call] = [call for turn in story["turns"] for call in turn["tool_calls"] if call["tool"] == "paint"]
    assert call["result"].startswith("painted:\n[image 48x32 png ")
    assert "[image " in run.raw("records", "show", record["_id"]).stdout
    exports_are_complete(run, record["_id"], {one["_id"] for one in found["Image"]})


async def everything(run: Run) -> dict[str, Any]:
    found, database = await look(run), await opened(run)
    try:
        return found | {kind: await database.find(kind, {}) for kind in ("DispatchedSamplingTask", "Image")}
    finally:
        await database.close()


def exports_are_complete(run: Run, record: str, stored: set[str]) -> None:
    [line] = run.raw("records", "export", "--filter", f"id={record}").stdout.splitlines()
    whole = json.loads(line)
    assert {one["sha256"] for one in whole["images"]} <= stored
    named = {one["token"] for one in whole["images"]}
    assert {token for segment in whole["segments"] for token in segment["ids"] if image_ids.is_image(token)} == named
    rows = run.file.parent / "again.jsonl"
    run.raw("records", "export", "--as", "dataset", "--filter", f"id={record}", "-o", str(rows))
    [row] = datasets.read(rows)
    [source] = image_marks.names_in(row.query)
    data = base64.b64decode(source.partition(",")[2])
    assert hashlib.sha256(data).hexdigest() in stored, "the exported task has its image"


def end_often(model: Path) -> None:
    """Make every control token end a turn, because random weights rarely sample one particular token."""
    words = Tokenizer(model)
    ends = [words.control(name) for name in words.control_tokens()]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def write_tasks(folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        (folder / f"{name}.png").write_bytes(tiny_vision.square(colour, 40 + 2 * number, 32))
        rows.append({"messages": asked(f"{name}.png"), "answer": name})
    (folder / "broken.png").write_bytes(tiny_vision.square((1, 2, 3))[:60])
    rows.append({"messages": asked("broken.png"), "answer": "none"})
    (folder / "colours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def asked(image: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "Which colour?"}]}]


def images_in(record: dict[str, Any], found: dict[str, Any]) -> list[int]:
    """Of its prompts, in order."""
    calls = [one for one in found["DispatchedSamplingTask"] if one["record"] == record["_id"]]
    return image_ids.numbers_in(token for call in calls for token in unpack_ids(call["prompt"]))
