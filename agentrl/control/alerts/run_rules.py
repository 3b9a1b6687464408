"""Alert rules about the run: its coordinator, its waits and its steps.

Invariant: a slow process is compared with its own usual pace before it is compared with a fixed limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agentrl.control.alerts import subjects
from agentrl.control.alerts.rule_types import Condition, Finding, Rule, RunSnapshot, Threshold
from agentrl.control.alerts.subjects import ends_of
from agentrl.formatting.amounts import age
from agentrl.formatting.sentences import ended
from agentrl.protocol.rows import Severity


def no_progress(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for chain in snapshot.chains:
        overdue = [link for link in chain.links if link.overdue]
        if overdue:
            because = f"{'stands in ' if chain.because.startswith('a circle') else ''}{ended(chain.because)}"
            yield Finding(
                chain.culprit,
                f"Units wait too long for {chain.culprit}, which {because}",
                (chain.sentence, *(f"{link.who} waits for {link.on}, {link.age_s:.0f} s" for link in overdue[:5])),
                "agentrl why",
                explained_by=ends_of(snapshot, [chain]),
            )


def no_step(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for found in snapshot.standing_still:
        chains = [chain for chain in snapshot.chains if any(link.who == found.unit for link in chain.links)]
        last = "no step was seen" if found.step is None else f"step {found.step:.0f} was the last"
        pace = f"usually one in {found.usual_s:.0f} s" if found.usual_s else last
        why = chains[0].because if chains else found.stage
        sentence = f"{found.unit} has made no step for {age(found.for_s)}{f': {ended(why)}' if why else '.'}"
        evidence = (pace, found.stage, *(chain.sentence for chain in chains[:3]))
        explained_by = (found.unit, *ends_of(snapshot, chains))
        yield Finding(found.unit, sentence, tuple(filter(None, evidence)), "agentrl why", explained_by=explained_by)


def _coordinator_cannot(name: str, field: str, sentence: str, severity: Severity = Severity.WARNING) -> Rule:
    """The coordinator cannot do something; a field of the run's row holds the reason."""
    return Threshold(
        name,
        subjects=subjects.run,
        value=lambda run: bool(getattr(run, field)),
        sentence=sentence,
        evidence=lambda found: (getattr(found.row, field),),
        cure="agentrl doctor",
        severity=severity,
    )


RUN_RULES = (
    _coordinator_cannot(
        "journal-full",
        "journal_full",
        "The journal cannot be written, so commands are refused until it can.",
        Severity.PAGE,
    ),
    _coordinator_cannot(
        "not-listening",
        "not_listening",
        "Other hosts cannot reach the coordinator of {subject}; units on its own host are not affected.",
    ),
    _coordinator_cannot(
        "not-recording",
        "not_recording",
        "{subject} is not recorded now, so this time cannot be played back; the run itself is not affected.",
    ),
    _coordinator_cannot(
        "not-exporting",
        "not_exporting",
        "The metrics of {subject} are not served, so Prometheus sees nothing of it; the run itself is not affected.",
    ),
    # A unit that is only just past its deadline is about to be ended for that reason.
    Condition("no-progress", no_progress, hold_s=15.0),
    Condition("no-step", no_step),
)
