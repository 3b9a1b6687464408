"""Spans at a real receiver of OTLP: their tree, what is kept of traces that are not sampled, a missing receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from agentrl.tracing import otlp_export, spans, trace_context
from agentrl.tracing.spans import Span
from tests.ports import free_triplet
from tests.tracing.receiver import receiving
from tests.waiting import eventually

RECORD = trace_context.of_record("run", "r1")
LEFT_OUT = trace_context.of_record("run", "r1", 0.0)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    spans.set_exporter(None)


def test_spans_arrive_as_a_tree_with_their_resource_and_the_token() -> None:
    with receiving() as receiver:
        stop = otlp_export.start(receiver.url, {"authorization": "Bearer x"}, "sampler", {"service.instance.id": "s.1"})
        with spans.span("episode", root=RECORD, agentrl__record="r1") as episode:
            with spans.span("call", kind="client", gen_ai__usage__input_tokens=7) as call:
                call.fail("timeout")
            with pytest.raises(ValueError, match="secret"), spans.span("broken"):
                raise ValueError("secret text of a model")
            episode.set(agentrl__turns=2, ok=True, share=0.5)
        operation = trace_context.of_operation("0af7651916cd43dd8448eb211c80319c")
        spans.record("operation scale", operation, began_s=1.5, ended_s=2.0, error="failed")
        with spans.span("of no trace"):
            pass
        stop()
    assert {*receiver.spans} == {"episode", "call", "broken", "operation scale"}
    root = receiver.spans["episode"]
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (RECORD.trace_id, RECORD.span_id, "")
    for name in ("call", "broken"):
        assert receiver.spans[name].trace_id == root.trace_id
        assert receiver.spans[name].parent_span_id == root.span_id
    assert receiver.attributes("episode") == {"agentrl.record": "r1", "agentrl.turns": 2, "ok": True, "share": 0.5}
    assert receiver.attributes("call") == {"gen_ai.usage.input_tokens": 7, "error.type": "timeout"}
    kinds = {name: span.kind for name, span in receiver.spans.items()}
    assert (kinds["episode"], kinds["call"]) == (1, 3)
    assert receiver.spans["broken"].status.message == "ValueError", "the text of an error may be of a model"
    ended = receiver.spans["operation scale"]
    assert ended.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert (ended.start_time_unix_nano, ended.end_time_unix_nano) == (1_500_000_000, 2_000_000_000)
    assert ended.status.code == 2
    assert receiver.tokens == {"Bearer x"}
    assert receiver.schemas == {otlp_export.SCHEMA}
    assert receiver.resources[0] == {
        "service.namespace": "agentrl",
        "service.name": "sampler",
        "service.instance.id": "s.1",
    }


def test_of_traces_that_are_not_sampled_failures_and_slow_ones_are_kept() -> None:
    exported: list[Span] = []
    spans.set_exporter(exported.append)

    def episode(number: int, *, fails: bool = False, slow: bool = False) -> None:
        root = trace_context.of_record("run", f"r{number}", 0.0)
        with spans.span("episode", root=root, number=number) as made:
            with spans.span("call", number=number):
                pass
            if fails:
                made.fail("infrastructure")
            if slow:
                made.began_ns -= 3600 * 10**9

    episode(0, slow=True)
    assert exported == [], "there is no earlier trace to compare with"
    for number in range(1, spans.COMPARED + 1):
        episode(number)
    before = len(exported)
    episode(1001, fails=True)
    episode(1002, slow=True)
    episode(1003)
    kept = [(span.name, span.attributes["number"]) for span in exported[before:]]
    assert kept[:4] == [("call", 1001), ("episode", 1001), ("call", 1002), ("episode", 1002)]
    assert all(span.context.sampled for span in exported)


def test_a_trace_is_slow_relative_to_its_like_and_one_failed_span_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[str] = []
    spans.set_exporter(lambda span: exported.append(span.context.trace_id))

    def episode(number: int, kind: str, seconds: int, fails: str = "") -> str:
        root = trace_context.of_record(kind, f"r{number}", 0.0)
        with spans.span("episode", root=root, like=kind) as made:
            with spans.span("call") as call:
                call.error = fails
            made.began_ns -= seconds * 10**9
        return root.trace_id

    for number in range(spans.COMPARED):
        episode(number, "long", 600 + number)
        episode(number, "short", 1)
    exported.clear()
    usual, slow, failed = episode(901, "long", 700), episode(902, "short", 60), episode(903, "short", 1, "timeout")
    assert usual not in exported
    assert exported.count(slow) == exported.count(failed) == 2, "whole traces"


def test_spans_that_wait_for_a_decision_are_bounded_and_the_longest_idle_trace_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported: list[Span] = []
    spans.set_exporter(exported.append)
    monkeypatch.setattr(spans, "MOST_HELD", 6)
    monkeypatch.setattr(spans, "MOST_OF_TRACE", 3)
    busy, *others = (trace_context.of_record("run", f"r{number}", 0.0) for number in range(4))
    for other in others:
        for trace in (busy, other):
            for _ in range(2):
                with trace_context.within(trace), spans.span("generate"):
                    pass
    spans.keep([trace.trace_id for trace in (busy, *others)])
    found = [span.context.trace_id for span in exported]
    assert [found.count(trace.trace_id) for trace in (busy, *others)] == [3, 0, 0, 2]
    with trace_context.within(busy), spans.span("late"):
        pass
    assert exported[-1].name == "late", "later spans of a kept trace are exported at once"


def test_a_receiver_that_is_down_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "ANSWERS_WITHIN_S", 1)
    monkeypatch.setattr(otlp_export, "ENDS_WITHIN_S", 0.1)
    monkeypatch.setattr(otlp_export, "MOST_WAITING", 512)
    before = {*threading.enumerate()}
    stop = otlp_export.start(f"http://127.0.0.1:{free_triplet()}/v1/traces", {}, "sampler", {})
    for number in range(2 * otlp_export.MOST_WAITING):
        spans.record("step", RECORD, began_s=0.0, ended_s=float(number))
    stop()
    assert not spans.exporting()
    eventually(lambda: {*threading.enumerate()} <= before, what="the end of the threads that sent")


def test_without_an_exporter_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: pytest.fail("a span read the clock"))
    with spans.span("episode", root=RECORD) as first:
        first.set(a=1)
        first.fail("x")
        assert trace_context.current() is None
    assert (first.attributes, first.error) == ({}, "")
