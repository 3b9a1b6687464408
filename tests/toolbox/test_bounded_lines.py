"""Lines of any length are read in bounded memory, and output of a server never blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.toolbox import bounded_lines
from agentrl.toolbox.bounded_lines import JsonShortener, TooLong, lines
from agentrl.toolbox.result_text import cut
from tests.toolbox.conftest import MakeToolbox, faulty

TEXT = st.text(alphabet=st.sampled_from('ab"\\/\n\té€😀\x00u0'), max_size=60)
JSON = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def same_shape(before: Any, after: Any, kept: int) -> bool:
    if isinstance(before, str):
        short = len(json.dumps(before, ensure_ascii=False).encode()) - 2 <= kept
        return isinstance(after, str) and (not short or before == after)
    if isinstance(before, list):
        return len(before) == len(after) and all(
            same_shape(one, two, kept) for one, two in zip(before, after, strict=True)
        )
    if isinstance(before, dict):
        return all(same_shape(value, after[key], kept) for key, value in before.items() if len(key) < kept // 12)
    return bool(before == after)


@given(value=JSON, ascii_only=st.booleans(), piece=st.integers(1, 40), kept=st.integers(24, 60))
def test_shortened_json_is_json_of_the_same_structure(value: Any, ascii_only: bool, piece: int, kept: int) -> None:
    line = json.dumps(value, ensure_ascii=ascii_only).encode()
    shortener = JsonShortener(kept)
    for start in range(0, len(line), piece):
        shortener.feed(line[start : start + piece])
    after = json.loads(shortener.copied.decode())
    assert same_shape(value, after, kept if not ascii_only else kept // 6)


def test_both_ends_of_a_long_text_stay_and_the_rest_is_counted() -> None:
    text = "<" + "é" * 500 + ">"
    shortener = JsonShortener(40)
    shortener.feed(json.dumps(text).encode())
    after = json.loads(shortener.copied)
    assert (after[0], after[-1]) == ("<", ">")
    assert "characters left out" in after
    shown, left_out = cut(after, 60)
    assert len(shown) <= 60
    assert left_out > 2_000, "counted as they are written: six characters for each"


async def read(*pieces: bytes, **limits: Any) -> list[bytes | TooLong]:
    stream = asyncio.StreamReader(limit=1 << 16)
    for piece in pieces:
        stream.feed_data(piece)
    stream.feed_eof()
    return [line async for line in lines(stream, **limits)]


async def test_lines_are_split_and_empty_ones_left_out() -> None:
    assert await read(b"one\n\ntw", b"o\n\n\nthree") == [b"one", b"two", b"three"]


async def test_a_line_without_end_keeps_its_head() -> None:
    (found,) = await read(b"x" * 100_000, b"y" * 100_000, whole=4096, shorten=False)
    assert found == TooLong(b"x" * 4096, 200_000)
    (found,) = await read(b"[" + b"1," * 100_000 + b"\n", whole=4096, most=10_000)
    assert isinstance(found, TooLong)
    assert (found.head[:3], found.length) == (b"[1,", 200_001)


async def test_a_line_of_two_hundred_megabytes_is_never_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_lines, "KEPT_BYTES", 1 << 20)
    stream = asyncio.StreamReader(limit=1 << 16)

    async def write() -> None:
        stream.feed_data(b'{"text": "<')
        for _ in range(200 << 4):
            stream.feed_data(b"x" * (1 << 16))
            await asyncio.sleep(0)
        stream.feed_data(b'>"}\n')
        stream.feed_eof()

    tracemalloc.start()
    writing = asyncio.create_task(write())
    (found,) = [line async for line in lines(stream)]
    await writing
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, bytes)
    text = json.loads(found)["text"]
    assert (text[0], text[-1]) == ("<", ">")
    assert most < 24 << 20


FLOODS = {
    "empty lines": "for _ in range(16): sys.stdout.write('\\n' * 65536)",
    "no messages": "for _ in range(8): sys.stdout.write('x\\n' * 32768)",
    "broken messages": "for _ in range(4): sys.stdout.write('{\"id\": \\n' * 8192)",
    "its log": "for _ in range(8): sys.stderr.write('x\\n' * 32768)",
    "one line": "for _ in range(64): sys.stdout.write('x' * (1 << 20))",
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_output_of_a_server_does_not_block_the_event_loop(make: MakeToolbox, flood: str) -> None:
    async with make({"noisy": faulty(timeout_s=60.0), "quiet": faulty()}) as hands:
        await hands.open("a", "noisy")
        await hands.open("b", "quiet")
        code = f"import sys\n{FLOODS[flood]}\nsys.stdout.write('\\n'); sys.stdout.flush(); sys.stderr.flush()"
        writing = asyncio.create_task(hands.call("a", "flood", "python", server="noisy", code=code))
        steps, step, longest = 0, time.thread_time(), 0.0
        while not writing.done():
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, step, steps = max(longest, now - step), now, steps + 1
        assert (await writing).status == "ok"
        assert (await hands.call("b", "still", "echo", server="quiet", text="here")).content == "here"
        # Processor time of this thread between two turns of a task, which other programs do not lengthen.
        assert longest < 0.1, f"{longest:.3f} s in {steps} turns"
