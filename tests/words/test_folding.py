"""What says the same is told once, and what says something else is not lost: last lines, messages of tools, waits."""

from __future__ import annotations

from agentrl.protocol.commands import WaitChain, WaitLink
from agentrl.words import waits
from agentrl.words.folding import folded, kind_of, kinds_of

ROUTINE = [
    f"2026-11-22 13:{minute}:07,12{minute} sampler call c{minute} of r8f3a{minute} failed" for minute in range(13)
]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in main',
    '  File "b.py", line 2, in main',
    "ValueError: 3",
]


def test_routine_lines_are_told_once_where_the_last_of_them_stood() -> None:
    last = ["it starts", *ROUTINE[:7], "the disk is full", *ROUTINE[7:]]
    assert folded(last) == ["it starts", "the disk is full", f"×13 {ROUTINE[-1]}"]
    assert folded([]) == []
    assert folded(["one", "two"]) == ["one", "two"]


def test_tracebacks_stay_whole_however_alike_their_lines_are() -> None:
    twice = [*TRACEBACK, *ROUTINE[:1], *TRACEBACK]
    assert folded(twice) == twice


def messages(*told: str) -> list[str]:
    return sorted(set(kinds_of(kind_of(one) for one in told).values()))


def test_messages_that_differ_in_a_name_are_of_one_kind() -> None:
    assert messages("no such item: baek", "no such item: stwe") == ["no such item: …"]
    assert messages("not an expression: 2*", "not an expression: 3 +", "not an expression: ans x") == [
        "not an expression: …"
    ]
    assert messages(*(f"item {name} is sold out" for name in ("bake", "stew", "soup"))) == ["item … is sold out"]
    assert messages("bad sign U+FFFD", "bad sign U+200B", "bad sign U+7") == ["bad sign #"]
    again = messages("no such item: …", "no such item: soup")
    assert again == ["no such item: …"], "what was folded goes on to take in names"


def test_messages_that_say_something_else_are_not() -> None:
    two = ["connection refused by host", "connection reset by host"]
    assert messages(*two) == two
    errors = ["OSError: refused", "OSError: reset", "OSError: away"]
    assert messages(*errors) == sorted(errors), "behind the name of an error stands what went wrong"
    short = ["too long", "too large", "too old", "division by zero"]
    assert messages(*short) == sorted(short)


def chain(*links: WaitLink, amiss: bool = False) -> WaitChain:
    return WaitChain(links, "b-0", "is at work", "a-0 ← b-0", amiss)


def test_waits_that_are_nothing_are_not_told() -> None:
    handed_on, waiting = WaitLink("a-0", "b-0", "work", 0.4), WaitLink("c-0", "b-0", "work", 4.0)
    assert waits.worth_telling([chain(handed_on)]) == []
    (left,) = waits.worth_telling([chain(handed_on), chain(handed_on, waiting)])
    assert [told.sentence for told in waits.of_chain(left)] == ["c-0 waits for b-0 (work), 4 s"]
    assert waits.worth_telling([chain(handed_on, amiss=True)]), "somebody has just died"


def test_what_a_chain_ends_at_is_told_once() -> None:
    links = (WaitLink("a-0", "b-0", "is at work", 9.0), WaitLink("c-0", "b-0", "a page", 8.0))
    assert [told.sentence for told in waits.of_chain(chain(*links))] == [
        "a-0 waits for b-0, 9 s",
        "c-0 waits for b-0 (a page), 8 s",
    ]


def test_of_many_waits_of_one_the_oldest_are_told_and_how_many_more() -> None:
    many = (WaitLink("a-0", "b-0", f"record {n}", 20.0 - n, overdue=n < 3) for n in range(4))
    assert list(waits.of_chain(chain(*many))) == [
        ("a-0 waits for b-0 (record 0), 20 s", True),
        ("a-0 waits for b-0 (record 1), 19 s", True),
        ("a-0 has 2 more such waits, 1 of them overdue", False),
    ]
    one_more = (WaitLink("a-0", "b-0", "", 9.0) for _ in range(4))
    assert list(waits.of_chain(chain(*one_more)))[-1].sentence == "a-0 has 2 more such waits"


def test_who_is_at_work_is_no_culprit() -> None:
    assert waits.end_of(chain())[0] == "ends at"
    assert waits.end_of(chain(amiss=True)) == ("culprit", "b-0: is at work")
    assert waits.all_well([chain()])
    assert not waits.all_well([chain(), chain(amiss=True)])
