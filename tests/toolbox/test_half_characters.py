"""Half characters in the answer of a tool server reach the episode as replacement characters."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.data_plane import ToolServer
from agentrl.toolbox.half_characters import WholeCharacters, in_whole_characters
from tests.toolbox.conftest import MakeToolbox, http_server

HALVES = [rb"a \ud83d b", rb"a \ude00 b", rb"a \ud83d\n b", b"a \xe4 b"]


@pytest.fixture(scope="module")
def raw_server() -> Iterator[str]:
    with http_server(sys.executable, "-m", "tests.toolbox.raw_http_server", "{port}") as (url, _):
        yield url


@pytest.mark.parametrize("half", HALVES)
async def test_text_with_half_a_character_is_an_answer_over_stdio(make: MakeToolbox, half: bytes) -> None:
    async with make() as hands:
        await hands.open("s")
        answer = await hands.call("s", "a", "raw", inside=half.hex())
        assert answer.content.replace("\n", "") == "a \ufffd b"


@pytest.mark.parametrize("form", ["whole", "events", "compressed"])
@pytest.mark.parametrize("half", HALVES)
async def test_text_with_half_a_character_is_an_answer_over_http(
    make: MakeToolbox, raw_server: str, form: str, half: bytes
) -> None:
    async with make({"raw": ToolServer(url=raw_server, session="shared", timeout_s=5.0)}) as hands:
        await hands.open("s", "raw")
        answer = await hands.call("s", "a", form, server="raw", inside=half.hex())
        assert (answer.status, answer.content.replace("\n", "")) == ("ok", "a \ufffd b")
        whole = await hands.call("s", "b", form, server="raw", inside=rb"\\ud83d \ud83d\ude00 \u00e4\t".hex())
        assert whole.content == "\\ud83d \U0001f600 ä\t"


texts = st.text(st.sampled_from('a\\ud83dDe00u"\n\U0001f600é\ud83d\ude00'))


@given(texts, st.booleans(), st.data())
def test_pieces_of_any_size_give_whole_characters(text: str, ascii_only: bool, data: st.DataObject) -> None:
    written = json.dumps(text, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    ends = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    whole = WholeCharacters()
    pieces = [written[start:end] for start, end in zip([0, *ends], [*ends, len(written)], strict=True)]
    joined = b"".join(map(whole.feed, pieces)) + whole.end()
    assert joined == in_whole_characters(written)
    if ascii_only:
        # A pair of halves is a character, as in UTF-16.
        expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert json.loads(joined).replace("\ufffd", "") == expected.replace("\ufffd", "")
    json.loads(joined).encode()


def test_an_answer_that_is_complete_is_not_held_back() -> None:
    for complete in (rb'{"text":"a\n"}', rb'data: "\u00e4"' + b"\n\n", rb'"\ud83d"'):
        whole = WholeCharacters()
        assert (whole.feed(complete), whole.end())[1] == b""
