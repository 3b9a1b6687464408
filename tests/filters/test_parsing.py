"""The meaning of queries, and the refusal of wrong ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ExitCode
from agentrl.filters.evaluate import matches
from agentrl.filters.expressions import EVERYTHING, Compare, Expression
from agentrl.filters.fields import CALLS, CHECKPOINTS, PUBLICATIONS, RECORDS, STEPS, TASKS, TOOL_CALLS, Field
from agentrl.filters.parser import FilterError, parse
from agentrl.filters.tool_names import with_servers
from tests.filters.queries import FIELDS, NOW, expressions

RECORD = {
    "id": "shop/train/0/000001#r1.s2.a1",
    "status": "failed",
    "outcome": "tool_timeout",
    "error": "read Timeout after 5 s",
    "score": 0.25,
    "turns": 3,
    "duration_s": 31.5,
    "created_at": datetime(2026, 3, 1, 11, 30, tzinfo=UTC),
    "finished_at": None,
}


def holds(query: str, record: dict[str, object] = RECORD) -> bool:
    return matches(parse(query, RECORDS), record, NOW)


@pytest.mark.parametrize(
    "query",
    [
        'status=failed and duration_s>30 and error~"timeout"',
        "status == failed",
        "id=shop/train/0/000001#r1.s2.a1",
        "status in (open, failed)",
        "status not in (open, running)",
        "not status=open and not (turns<3 or turns>3)",
        "status=open or status=failed and turns=3",
        "turns>=3 AND turns<=3.0",
        "score=null or score=0.25",
        "finished_at=null and created_at!=null",
        "created_at=2026-03-01 and created_at<2026-03-02 and created_at>2026-02-28",
        "created_at=2026-03-01T11:30 and created_at>2026-03-01T11:29",
        "created_at>=2026-03-01T12:30+01:00",
        "created_at>-1h and created_at<-10m",
        "created_at in (2026-01-01, 2026-03-01)",
        "error!~refused and error~'READ timeout'",
        "",
        "   ",
        # A missing value is neither smaller nor greater, and equals nothing.
        "not oldest_version<5 and not oldest_version>=5 and oldest_version!=5",
    ],
)
def test_query_matches_the_record(query: str) -> None:
    assert holds(query)


@pytest.mark.parametrize(
    "query",
    [
        "status=open or status=running and turns=3",
        "(status=failed or status=open) and turns=4",
        "created_at>2026-03-01",
        "created_at<2026-03-01",
        "created_at>-20m",
        "error~refused",
        "outcome in (null, answered)",
        "turns>3",
    ],
)
def test_query_does_not_match_the_record(query: str) -> None:
    assert not holds(query)


@pytest.mark.parametrize(
    ("query", "position", "says"),
    [
        ("statsu=failed", 0, "did you mean 'status'?"),
        ("turns>3 and Duration_S>3", 12, "did you mean 'duration_s'?"),
        ("zzz=1", 0, "there is no field 'zzz'"),
        ("status", 6, "comes one of"),
        ("status failed", 7, "not 'failed'"),
        ("status=", 7, "a value for status was expected, not 'the end'"),
        ("status=and turns=3", 7, "quote it"),
        ("turns=three", 6, "is a number"),
        ("turns=1_000", 6, "is a number"),
        ("score>1e999", 6, "too great"),
        ("turns~3", 5, "looks into texts"),
        ("finished_at<null", 12, "null can only be compared"),
        ("created_at>yesterday", 11, "is a time"),
        ("created_at>2026-13-01", 11, "no time"),
        ("created_at>-9999999w", 11, "hundred years"),
        ("created_at>9999-12-31", 11, "no time"),
        ("(status=failed", 14, "bracket is not closed"),
        ("status=failed)", 13, "was not expected"),
        ("status=failed turns=3", 14, "was not expected"),
        ("status in failed", 10, "list in brackets"),
        ("status in (a b)", 13, "comma is missing"),
        ("status in ()", 11, "a value for status"),
        ('error="half', 6, "quotation is not closed"),
        ("status=a && turns=3", 9, "was not expected"),
        ("&& turns=3", 0, "`and` and `or`"),
        ("turns ! 3", 6, "means nothing"),
        ("error~''", 6, "1 to 1000 characters"),
        ("error='\0'", 6, "number 0"),
        ("not " * 50 + "turns=3", 80, "deeper than 20"),
        ("(" * 50 + "turns=3" + ")" * 50, 20, "deeper than 20"),
        ("= 3", 0, "the name of a field"),
    ],
)
def test_wrong_query_is_refused_with_its_position(query: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse(query, RECORDS)
    assert refused.value.position == position
    assert says in refused.value.problem
    assert says in str(refused.value)
    assert refused.value.exit_code is ExitCode.USAGE


def test_unknown_field_is_answered_with_the_list_of_fields() -> None:
    with pytest.raises(FilterError, match="Fields are: id, environment"):
        parse("zzz=1", TASKS)


def test_flags_and_lists_have_no_order() -> None:
    for query in ("signal>true", "servers<a"):
        with pytest.raises(FilterError, match="has no order"):
            parse(query, TASKS)
    with pytest.raises(FilterError, match="is true or false"):
        parse("signal=maybe", TASKS)


def test_list_matches_if_an_item_does() -> None:
    task = {"id": "t", "servers": ["shop", "search"], "sampling": {"temperature": 0.7}, "signal": True}
    for query in ("servers=shop", "servers~SEAR", "servers!=math", "sampling.temperature<1", "signal=TRUE"):
        assert matches(parse(query, TASKS), task, NOW), query
    for query in ("servers!=shop", "servers!~sea", "servers=null", "sampling.top_p<1"):
        assert not matches(parse(query, TASKS), task, NOW), query


def test_times_without_a_zone_are_utc() -> None:
    task = {"id": "t", "admitted_at": datetime(2026, 3, 1, 11, 30)}
    for now in (NOW, NOW.replace(tzinfo=None)):
        assert matches(parse("admitted_at>-1h and admitted_at<-20m", TASKS), task, now)


def test_every_metric_is_a_field() -> None:
    step = {"id": "s", "metrics": {"loss": 0.5, "age": {"mean": 1.0}}}
    assert matches(parse("metrics.loss<1 and metrics.age.mean=1", STEPS), step, NOW)
    for name in ("metrics", "metrics.", "metrics.$where", "metrics.a..b"):
        with pytest.raises(FilterError):
            parse(f"{name}=1", STEPS)


@pytest.mark.parametrize("fields", [TASKS, RECORDS, CALLS, TOOL_CALLS, STEPS, CHECKPOINTS])
def test_every_document_kind_has_an_id(fields: object) -> None:
    assert parse("id=x", fields) == parse("id = 'x'", fields)  # type: ignore[arg-type]


def test_id_of_a_publication_is_a_number() -> None:
    assert parse("id>=17", PUBLICATIONS) == Compare(Field("id", "number", "_id"), ">=", 17)


@given(expressions)
@settings(max_examples=150, deadline=None)
def test_text_of_a_tree_parses_to_the_same_tree(tree: Expression) -> None:
    assert parse(str(tree), FIELDS) == tree


@given(st.text("aind not(),<=>!~\"'\\-1.status", max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_text_is_parsed_or_refused_with_a_reason(text: str) -> None:
    refused, tree = parsed(text)
    if refused is not None:
        assert 0 <= refused.position <= len(text)
        assert refused.problem
    else:
        assert parse(str(tree), FIELDS) == tree


def parsed(text: str) -> tuple[FilterError | None, Expression]:
    try:
        return None, parse(text, FIELDS)
    except FilterError as refused:
        return refused, EVERYTHING


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("row.difficulty = hard", {"difficulty": "hard"}),
        ("row.level>3 and row.level=4", {"level": 4}),
        ('row.level="4" and row.level!=4 and row.level~4', {"level": "4"}),
        ("row.easy=true and row.easy!=false", {"easy": True}),
        ("row.meta.source in (web, 7) and row.other=null", {"meta": {"source": "web"}}),
        ("row.problem-type!~algebra and row.problem-type!=null", {"problem-type": "geometry"}),
        ("row.id=17", {"id": "17"}),
        ("row.tags=new", {"tags": ["new", "short"]}),
    ],
)
def test_columns_of_the_dataset_row_are_compared_by_the_kind_of_the_value(query: str, row: dict[str, object]) -> None:
    tree = parse(query, TASKS)
    assert matches(tree, {"extra": row}, NOW)
    assert not matches(tree, {"extra": {"difficulty": "easy"}}, NOW)
    assert parse(str(tree), TASKS) == tree


@pytest.mark.parametrize("query", ["row.=5", "row.$where=5", "row.a..b=5", "row.easy<true", "row.a~null"])
def test_impossible_conditions_on_columns_are_refused(query: str) -> None:
    with pytest.raises(FilterError):
        parse(query, TASKS)
    with pytest.raises(FilterError, match=r"there is no field 'row\.difficulty'"):
        parse("row.difficulty=hard", STEPS)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("tool=shop.lookup", {("shop", "lookup"), ("x", "shop.lookup")}),
        ("tool=lookup", {("shop", "lookup"), ("other", "lookup")}),
        ("tool=other.a.b", {("other", "a.b")}),
        ("tool!=shop.lookup", {("other", "lookup"), ("other", "a.b")}),
        ("not tool=shop.lookup and server=other", {("other", "lookup"), ("other", "a.b")}),
        ("tool in (shop.lookup, a.b)", {("shop", "lookup"), ("x", "shop.lookup"), ("other", "a.b")}),
        ("tool=shop.lookup or tool=a.b", {("shop", "lookup"), ("x", "shop.lookup"), ("other", "a.b")}),
    ],
)
def test_tool_is_found_by_the_name_that_lists_show(query: str, found: set[tuple[str, str]]) -> None:
    calls = [("shop", "lookup"), ("other", "lookup"), ("x", "shop.lookup"), ("other", "a.b")]
    parsed = with_servers(parse(query, TOOL_CALLS))
    assert {call for call in calls if matches(parsed, {"server": call[0], "tool": call[1]}, NOW)} == found
