"""Pure parts of the toolbox: cutting text, statistics, kept answers, and the environment of a server."""

from __future__ import annotations

import mcp_types as types
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tokens.image_marks import CHARACTER, mark, names_in
from agentrl.toolbox import call_registry, mcp_connection, service_report
from agentrl.toolbox.api_messages import (
    REFUSALS,
    CallAnswer,
    CallConflictError,
    CallTool,
    OpenSession,
    ServerInfo,
    error_of,
    refusal_of,
)
from agentrl.toolbox.call_registry import Call, CallRegistry
from agentrl.toolbox.connection_starts import NOT_YET
from agentrl.toolbox.result_text import cut, images_of, text_of
from agentrl.toolbox.tool_statistics import SAMPLES, ToolboxStatistics


@given(st.text(st.characters(exclude_characters=CHARACTER), max_size=300), st.integers(1, 300))
def test_a_cut_text_fits_and_keeps_both_ends(text: str, most: int) -> None:
    shown, left_out = cut(text, most)
    assert len(shown) <= most
    if len(text) <= most:
        assert (shown, left_out) == (text, 0)
    else:
        assert left_out >= len(text) - most
        assert shown[0] == text[0]


def test_a_cut_text_says_how_much_is_missing() -> None:
    shown, left_out = cut("a" * 500 + "b" * 500, 100)
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert f"[... {left_out} characters left out ...]" in shown
    assert 95 <= len(shown) <= 100


@pytest.mark.parametrize("before", [1, 30, 50, 500])
def test_a_mark_of_an_image_is_cut_out_whole(before: int) -> None:
    name = "f" * 64
    for text in ("a" * before + mark(name) + "b" * 500, "a" * 500 + mark(name) + "b" * before):
        for most in (20, 100, 400):
            shown, _ = cut(text, most)
            assert len(shown) <= most
            assert shown.count(CHARACTER) == 2 * len(names_in(shown))
            assert set(names_in(shown)) <= {name}


def test_content_that_is_not_text_becomes_a_placeholder() -> None:
    result = types.CallToolResult(
        content=[
            types.TextContent(type="text", text="see"),
            types.ImageContent(type="image", data="aGk=", mime_type="image/png"),
            types.ResourceLink(type="resource_link", uri="file:///a", name="a"),
            types.EmbeddedResource(
                type="resource", resource=types.TextResourceContents(uri="file:///b", text="inside")
            ),
        ]
    )
    assert text_of(result) == "see\n[image, image/png]\n[resource file:///a]\ninside"
    images = images_of(result)
    [(name, data)] = images.items()
    assert data == b"hi"
    assert text_of(result, images).splitlines()[1] == mark(name), "images that come along are named where they stand"
    assert text_of(types.CallToolResult(content=[], structured_content={"a": 1})) == '{"a": 1}'


def test_statistics_count_by_status_and_fault_and_keep_samples() -> None:
    statistics = ToolboxStatistics()
    for number in range(100):
        statistics.add("s.t", CallAnswer(status="ok", latency_s=0.01 * (number + 1)), call=f"c{number}", session="s")
    for number in range(8):
        lost = CallAnswer(status="lost", error_class="infrastructure", content="x" * 900, latency_s=2.0)
        statistics.add("s.t", lost, call=f"l{number}", session="s")
    (seen,) = statistics.all()
    assert (seen.calls, seen.statuses, seen.faults) == (108, {"ok": 100, "lost": 8}, {"infrastructure": 8})
    assert seen.p50_s == pytest.approx(0.54, rel=0.3)
    assert seen.longest_s == 2.0
    assert [sample.call for sample in seen.samples] == [f"l{number}" for number in range(8 - SAMPLES, 8)]
    assert max(len(sample.content) for sample in seen.samples) <= 200


def test_recent_statistics_cover_only_the_last_minute() -> None:
    now = 0.0
    statistics = ToolboxStatistics(clock=lambda: now)

    def add(count: int, latency_s: float, *, bad: int = 0) -> None:
        for number in range(count):
            fault = "infrastructure" if number < bad else ""
            statistics.add(
                "s.t", CallAnswer(status="ok", error_class=fault, latency_s=latency_s), call="c", session="s"
            )

    add(40, 0.5, bad=10)
    assert statistics.recent()["s.t"] == (40, 40 / 60, 0.5, 0.25)
    now = 61.0
    assert statistics.recent()["s.t"] == (0, 0.0, 0.0, 0.0)
    add(10, 6.0, bad=5)
    assert statistics.recent()["s.t"] == (10, 10 / 60, 6.0, 0.0), "too few calls for a share of failures"
    now = 62.0
    add(2000, 1.0)
    assert statistics.recent()["s.t"].per_s > 500, "the kept calls of a busy tool show its rate"


def call_of(id: str, session: str = "s") -> Call:
    return Call(id, session, "t", {"a": 1})


def test_the_id_of_another_call_is_refused() -> None:
    book, call = CallRegistry(), call_of("c")
    book.begin(call)
    assert book.find("c", "s", "t", {"a": 1}) is call
    for session, tool, arguments in (("other", "t", {"a": 1}), ("s", "u", {"a": 1}), ("s", "t", {"a": 2})):
        with pytest.raises(CallConflictError):
            book.find("c", session, tool, arguments)
    book.refused(call)
    assert book.find("c", "s", "t", {"a": 1}) is None


def test_dropped_answers_leave_their_ids() -> None:
    book = CallRegistry(most_chars=250)
    calls = [call_of(f"c{number}") for number in range(4)]
    for call in calls:
        book.begin(call)
        book.answered(call, CallAnswer(status="ok", content="x" * 100))
    assert [call.answer is not None for call in calls] == [False, False, True, True]
    assert book.find("c0", "s", "t", {"a": 1}) is calls[0]


def test_answers_of_a_closed_session_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    book, call = CallRegistry(), call_of("c")
    book.begin(call)
    book.answered(call, CallAnswer(status="ok", content="x"))
    book.close("s", "it ended")
    assert book.closed("s") == "it ended"
    book.tidy()
    assert book.find("c", "s", "t", {"a": 1}) is call
    monkeypatch.setattr(call_registry, "ANSWERS_KEPT_S", -1.0)
    book.tidy()
    assert book.find("c", "s", "t", {"a": 1}) is None
    assert book.closed("s") == "it ended"


def test_a_refusal_raises_the_same_error_at_the_client() -> None:
    for kind in REFUSALS:
        raised = kind("Why.", hint="What to do.", retry_after_s=2.0)
        again = error_of(refusal_of(raised).error)
        assert (type(again), str(again), again.retry_after_s) == (kind, "Why. What to do.", 2.0)


def test_the_reason_of_a_server_names_it_once() -> None:
    def trouble(why: str, breaker: str = "closed") -> str:
        return service_report._trouble(ServerInfo(id="adder", session="shared", state="down", breaker=breaker, why=why))

    assert trouble(NOT_YET) == "adder: it is being started"
    assert trouble("adder did not come up: exit 1") == "adder did not come up: exit 1"
    assert trouble("", "open") == "adder has its breaker open"


def test_requests_of_episodes_have_no_field_that_an_earlier_toolbox_would_refuse() -> None:
    opening = msgspec.json.decode(msgspec.json.encode(OpenSession(id="a", servers=("shop",), wait_s=9.0)))
    assert opening == {"id": "a", "servers": ["shop"], "wait_s": 9.0}
    calling = msgspec.json.decode(msgspec.json.encode(CallTool(session="a", call="a/1", arguments={"x": 1})))
    assert calling == {"session": "a", "call": "a/1", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("declared", "hints", "effect"),
    [
        ("pure", None, "pure"),
        ("pure", {"readOnlyHint": True}, "pure"),
        ("pure", {"readOnlyHint": False}, "session"),
        ("pure", {"readOnlyHint": False, "openWorldHint": True}, "outside"),
        ("session", {"readOnlyHint": False, "openWorldHint": True}, "outside"),
        ("outside", {"readOnlyHint": True}, "outside"),
        ("anything", None, ""),
        (["pure"], None, ""),
        (None, {"readOnlyHint": True, "idempotentHint": True}, ""),
    ],
)
def test_standard_hints_make_a_declared_effect_only_more_careful(
    declared: object, hints: dict[str, bool] | None, effect: str
) -> None:
    tool = types.Tool.model_validate(
        {"name": "t", "inputSchema": {"type": "object"}, "annotations": hints, "_meta": {"agentrl/effect": declared}}
    )
    assert mcp_connection._declared_effect(tool) == effect
