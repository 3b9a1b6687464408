"""Wait chains in words: short waits are left out, many waits of one unit are summed up."""

from __future__ import annotations

from agentrl.formatting import wait_chain_text
from agentrl.protocol.control_commands import WaitChain, WaitLink


def chain(*links: WaitLink, amiss: bool = False) -> WaitChain:
    return WaitChain(links, "b-0", "is at work", "a-0 ← b-0", amiss)


def test_very_short_waits_are_left_out() -> None:
    handed_on, waiting = WaitLink("a-0", "b-0", "work", 0.4), WaitLink("c-0", "b-0", "work", 4.0)
    assert wait_chain_text.worth_showing([chain(handed_on)]) == []
    (left,) = wait_chain_text.worth_showing([chain(handed_on), chain(handed_on, waiting)])
    assert [line.sentence for line in wait_chain_text.of_chain(left)] == ["c-0 waits for b-0 (work), 4 s"]
    assert wait_chain_text.worth_showing([chain(handed_on, amiss=True)]), (
        "a chain with a problem is shown even if it is short"
    )


def test_cause_of_a_chain_is_named_once() -> None:
    links = (WaitLink("a-0", "b-0", "is at work", 9.0), WaitLink("c-0", "b-0", "a page", 8.0))
    assert [line.sentence for line in wait_chain_text.of_chain(chain(*links))] == [
        "a-0 waits for b-0, 9 s",
        "c-0 waits for b-0 (a page), 8 s",
    ]


def test_many_waits_of_one_unit_are_summed_up() -> None:
    many = (WaitLink("a-0", "b-0", f"record {n}", 20.0 - n, overdue=n < 3) for n in range(4))
    assert list(wait_chain_text.of_chain(chain(*many))) == [
        ("a-0 waits for b-0 (record 0), 20 s", True),
        ("a-0 waits for b-0 (record 1), 19 s", True),
        ("a-0 has 2 more such waits, 1 of them overdue", False),
    ]
    one_more = (WaitLink("a-0", "b-0", "", 9.0) for _ in range(4))
    assert list(wait_chain_text.of_chain(chain(*one_more)))[-1].sentence == "a-0 has 2 more such waits"


def test_working_unit_is_not_called_a_culprit() -> None:
    assert wait_chain_text.end_of(chain())[0] == "ends at"
    assert wait_chain_text.end_of(chain(amiss=True)) == ("culprit", "b-0: is at work")
    assert wait_chain_text.all_well([chain()])
    assert not wait_chain_text.all_well([chain(), chain(amiss=True)])
