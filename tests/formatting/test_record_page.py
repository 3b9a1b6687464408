"""A record as a web page and as a trace: complete, and safe whatever a model or a tool wrote."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from agentrl.formatting import record_page, record_timeline
from agentrl.protocol.data_commands import RecordStory
from agentrl.tokens import image_marks

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PNG = b"\x89PNG and the rest"
NAME = "ab" * 32
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m\u202e & \"quoted\" 'single'"


JUDGED = {"at": BEGIN.timestamp() + 8.0, "latency_s": 1.5, "purpose": f"judge {HOSTILE}", "model": "large", "cost": 0.1}
JUDGED |= {"outcome": "ok", "error": HOSTILE}


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def call(index: int, begin: float, end: float, branch: str = "") -> dict[str, Any]:
    sent = {
        "id": f"r/00{index}",
        "index": index,
        "branch": branch,
        "status": "done",
        "engine": "engine-0.1",
        "error": "",
    }
    return sent | {"sent_at": at(begin), "done_at": at(end), "seconds": end - begin, "versions": [[3, 2], [4, 5]]}


def tool(begin: float, end: float, result: str, status: str = "ok") -> dict[str, Any]:
    made = {"id": f"r/000.{begin}", "server": "shop", "tool": "find", "arguments": {"q": HOSTILE}, "status": status}
    times = {"requested_at": at(begin), "done_at": at(end), "latency_s": end - begin}
    return (
        made | times | {"result": result, "error_class": "" if status == "ok" else "infrastructure", "tried_again": ""}
    )


def turn(index: int, made: dict[str, Any], text: str, *tools: dict[str, Any]) -> dict[str, Any]:
    row = {"index": index, "text": text, "reason": "stop", "call": made, "tool_calls": list(tools)}
    loop = [{"role": "user", "text": HOSTILE}]
    return row | {"parsed": [{"error": HOSTILE}], "from_loop": loop, "started_at": made["sent_at"], "done_at": at(9)}


def story() -> RecordStory:
    record = {"id": f"r{HOSTILE}", "status": "scored", "environment": "shop", "score": 0.75, "turns": 2}
    record |= {"score_parts": {"right": 1.0, HOSTILE: 0.5}, "oldest_version": 3, "newest_version": 4}
    record |= {"created_at": at(-2), "started_at": at(0), "finished_at": at(10), "duration_s": 10.0}
    seen = f"seen: {image_marks.mark(NAME)} and again {image_marks.mark(NAME)} {image_marks.refused('too large')}"
    return RecordStory(
        record=record,
        task={"query": HOSTILE, "answer": "4"},
        ending={"sentence": "answered (policy)", "class": "policy"},
        turns=(
            turn(0, call(0, 0, 2), HOSTILE, tool(2, 5, seen), tool(3, 6, HOSTILE, "timeout")),
            turn(1, call(1, 7, 8, "critic"), "done"),
        ),
        under_way=({**call(2, 6.5, 6.75), "status": "failed", "error": HOSTILE},),
        attempts=({"id": "r2", "outcome": "", "status": "failed", "error": HOSTILE},),
        training={
            "advantage": -0.5,
            "steps": [{"id": "l/1", "status": "committed", "base_version": 5, "staleness": 2}],
        },
    )


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_shows_everything_and_nothing_in_it_acts() -> None:
    given = story()
    assert record_page.image_names(given) == [NAME]
    page = record_page.page(given, {NAME: PNG}, [JUDGED], run="shop-run")
    read = Elements(page)
    for expected in ("0.75", "-0.5", "versions 3 to 4", "this record 2", "v3 2 tokens, v4 5 tokens", "in critic"):
        assert expected in read.text
    for expected in ("shop.find(", "timeout (infrastructure)", "3.00 s", "waits", "[no image: too large]", "shop-run"):
        assert expected in read.text
    assert read.text.count("<script>alert(1)</script>") >= 10, "hostile text is shown as it is"
    assert "\x1b" not in page
    assert "\u202e" not in page
    tags = {tag for tag, _ in read.found}
    assert not tags & {"script", "link", "iframe", "object", "form", "base"}
    (image,) = [attributes["src"] for tag, attributes in read.found if tag == "img"]
    assert image == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert [attributes["href"] for tag, attributes in read.found if tag == "a"] == [f"#image-{NAME}"]
    assert not [attributes for _, attributes in read.found if any(name.startswith("on") for name in attributes)]
    policies = [attributes["content"] for _, attributes in read.found if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "[image abababababab]" in Elements(record_page.page(given)).text, "a missing image is named"


def test_notebook_shows_the_page_in_a_frame_that_cannot_act() -> None:
    read = Elements(record_page.frame(record_page.page(story(), {})))
    (only,) = read.found
    assert only[0] == "iframe"
    assert only[1]["sandbox"] == ""
    assert only[1]["srcdoc"] == record_page.page(story(), {})


def test_judge_calls_after_the_episode_give_no_wait_with_a_negative_duration() -> None:
    later = [JUDGED | {"at": BEGIN.timestamp() + after} for after in (20.0, 3600.0)]
    found = record_timeline.spans(story(), later)
    assert [span for span in found if span.end < span.begin] == []
    waits = [span.end for span in found if span.track == record_timeline.WAITS]
    assert max(waits) == at(10)


def test_trace_has_a_track_for_each_kind_and_all_of_the_time() -> None:
    read = json.loads(record_timeline.trace(story(), [JUDGED]))
    names = {event["tid"]: event["args"]["name"] for event in read["traceEvents"] if event["name"] == "thread_name"}
    expected = ["episode", "episode 2", "model calls", "model calls of critic", "tool calls", "tool calls 2"]
    expected += ["other models", "waits"]
    assert list(names.values()) == expected
    by_track: dict[str, list[tuple[str, int, int]]] = {name: [] for name in names.values()}
    for event in read["traceEvents"]:
        if event["ph"] == "X":
            by_track[names[event["tid"]]].append((event["name"], event["ts"], event["ts"] + event["dur"]))
    second = 1_000_000
    assert by_track["episode"][0] == ("waits for a sampler", 0, 2 * second)
    assert by_track["tool calls 2"] == [("shop.find", 5 * second, 8 * second)]
    assert [(begin, end) for _, begin, end in by_track["waits"]] == [
        (8 * second, 8_500_000),
        (8_750_000, 9 * second),
        (11_500_000, 12 * second),
    ]
    for spans in by_track.values():
        assert all(one[2] <= next[1] for one, next in pairwise(spans)), "spans of a track do not overlap"
    assert read["otherData"]["score"] == 0.75


def test_record_that_has_not_begun_is_a_page_and_a_trace() -> None:
    empty = RecordStory(record={"id": "r", "status": "open"}, task={}, ending={"sentence": "it has not ended"})
    assert "it has not ended" in record_page.page(empty)
    assert [event["ph"] for event in json.loads(record_timeline.trace(empty))["traceEvents"]] == ["M"]


def test_trace_is_what_the_format_of_trace_events_allows() -> None:
    read = json.loads(record_timeline.trace(story(), [JUDGED]))
    assert set(read) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert read["displayTimeUnit"] == "ms"
    by_phase: dict[str, list[dict[str, Any]]] = {"M": [], "X": [], "s": [], "f": []}
    for event in read["traceEvents"]:
        by_phase[event["ph"]].append(event)
        assert isinstance(event["name"], str)
        assert all(type(event[name]) is int and event[name] >= 0 for name in ("pid", "tid"))
        assert event["ph"] == "M" or (type(event["ts"]) is int and event["ts"] >= 0 and isinstance(event["cat"], str))
    for event in by_phase["M"]:
        kinds = {"process_name": str, "thread_name": str, "thread_sort_index": int}
        (value,) = event["args"].values()
        assert type(value) is kinds[event["name"]]
    slices = {(event["tid"], event["ts"]): event for event in by_phase["X"]}
    assert all(type(event["dur"]) is int and event["dur"] >= 0 for event in slices.values())
    named = [event["tid"] for event in by_phase["M"] if event["name"] == "thread_name"]
    assert sorted(named) == sorted({tid for tid, _ in slices}), "each thread has exactly one name"
    assert min(ts for _, ts in slices) == 0, "time starts at the beginning of the record"
    # An arrow begins inside a model call and ends where a later tool call begins.
    begins, ends = ({event["id"]: event for event in by_phase[phase]} for phase in "sf")
    assert begins.keys() == ends.keys()
    assert len(begins) == len(by_phase["s"]) == len(by_phase["f"]) == 2
    for id, end in ends.items():
        begin = begins[id]
        assert (begin["name"], begin["cat"], end["bp"]) == (end["name"], end["cat"], "e")
        assert begin["ts"] <= end["ts"]
        assert slices[end["tid"], end["ts"]]["cat"] == "tool"
        around = [each for each in slices.values() if each["tid"] == begin["tid"]]
        (call,) = [each for each in around if each["ts"] <= begin["ts"] < each["ts"] + each["dur"]]
        assert call["name"] == "model call 0"
