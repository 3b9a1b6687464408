"""The status tables: allowed moves, their actors, and the errors of all others."""

from __future__ import annotations

from collections import deque

import pytest

from agentrl.errors import ExitCode
from agentrl.policies import status_tables
from agentrl.policies.status_tables import NEW, TABLES, Actor, IllegalMoveError, RecordStatus, Table, TaskStatus, check

tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


@tables
def test_every_status_can_be_reached_and_every_move_is_between_statuses(table: Table) -> None:
    known = {status.value for status in table.statuses}
    assert {move.target for move in table.moves} <= known
    assert {move.source for move in table.moves} <= known | {NEW}
    reached, todo = {NEW}, deque([NEW])
    while todo:
        for target in table.targets(todo.popleft()) - reached:
            reached.add(target)
            todo.append(target)
    assert reached == known | {NEW}


@tables
def test_no_move_is_listed_twice_for_one_actor(table: Table) -> None:
    listed = [(move.source, move.target, actor) for move in table.moves for actor in move.actors]
    assert len(listed) == len(set(listed))
    assert all(move.when and move.actors for move in table.moves)


@tables
def test_the_check_agrees_with_the_table_for_all_actors(table: Table) -> None:
    allowed = {(move.source, move.target, actor) for move in table.moves for actor in move.actors}
    for source in (NEW, *table.statuses):
        for target in table.statuses:
            for actor in Actor:
                if (source, target, actor) in allowed:
                    move = check(table, source, target, actor)
                    assert (move.source, move.target) == (source, target)
                    assert source == NEW or source in table.sources(target, actor)
                else:
                    with pytest.raises(IllegalMoveError):
                        check(table, source, target, actor)
                    assert source not in table.sources(target, actor)


@pytest.mark.parametrize(
    ("table", "ends"),
    [
        ("Task", {"done"}),
        ("Record", {"unscorable", "excluded", "cancelled", "superseded"}),
        ("DispatchedSamplingTask", {"done", "partial", "failed"}),
        ("ToolCall", {"refused", "ok", "tool_error", "timeout", "cancelled", "lost"}),
        ("Replay", {"kept", "excluded", "forked", "failed"}),
        ("Step", {"released"}),
        ("Checkpoint", {"deleted", "abandoned"}),
        ("Publication", {"rejected", "skipped", "deleted"}),
        ("Breaker", set()),
    ],
)
def test_final_statuses(table: str, ends: set[str]) -> None:
    assert TABLES[table].ends() == ends


def test_an_unknown_move_is_refused_with_the_story_of_the_object() -> None:
    with pytest.raises(IllegalMoveError) as refused:
        check(
            status_tables.TASK,
            "queued",
            "trained",
            Actor.TRAINER,
            "shop/train/0/000017: queued in round 2 after too_few",
        )
    message = str(refused.value)
    assert "queued → trained does not exist; queued leads to admitted, queued" in message
    assert "shop/train/0/000017" in message
    assert refused.value.exit_code is ExitCode.REFUSED


def test_a_move_of_another_actor_is_refused_with_its_actors() -> None:
    with pytest.raises(IllegalMoveError, match="is made by sampler or steward, never by trainer"):
        check(status_tables.TASK, "admitted", "ready", Actor.TRAINER)


def test_an_unknown_status_is_named() -> None:
    with pytest.raises(IllegalMoveError, match="Record has no status 'runing'"):
        check(status_tables.RECORD, "runing", "scored", Actor.SCORER)
    with pytest.raises(IllegalMoveError, match="done is an end"):
        check(status_tables.TASK, "done", "queued", Actor.OPERATOR)


def test_source_statuses_of_a_conditional_update() -> None:
    assert status_tables.RECORD.sources("finished", Actor.SAMPLER) == ("running",)
    assert set(status_tables.RECORD.sources("superseded", Actor.TRAINER)) == status_tables.HOLDS_SEAT
    assert set(status_tables.TASK.sources("queued", Actor.OPERATOR)) == {"queued", "admitted", "ready", "dead"}
    assert status_tables.TASK.sources("queued", Actor.STEWARD) == ("admitted",), "creating a Task is no update"


def test_a_leased_task_leaves_only_through_its_step() -> None:
    leaving = [move for move in status_tables.TASK.moves if move.source == TaskStatus.LEASED]
    assert {move.target for move in leaving} == {"ready", "trained", "filtered"}
    assert {actor for move in leaving for actor in move.actors} == {Actor.TRAINER}


def test_records_in_flight_hold_their_seat() -> None:
    assert status_tables.IN_FLIGHT < status_tables.HOLDS_SEAT
    assert {RecordStatus.SCORED} == status_tables.HOLDS_SEAT - status_tables.IN_FLIGHT
