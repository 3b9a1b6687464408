"""Signs of an exploited reward: each is found where it is, with its counts, and a healthy series has none of them."""

from __future__ import annotations

import random

import pytest

from agentrl.policies import reward_watch
from agentrl.policies.reward_watch import Watched, sketch_of

SAY = "The price of the lamp in the second shop is {} dollars and that of the chair in the third shop is {} dollars."
WORDS = [f"{one}{other}" for one in ("lamp", "chair", "desk", "door") for other in ("red", "blue", "grey", "green")]


def records(count: int = 160, *, seed: int = 1, **of: object) -> list[Watched]:
    """Groups of four in which length and score are independent and all answers differ."""
    chance = random.Random(seed)
    return [
        Watched(
            group=f"t{place // 4}#r1",
            task=f"t{place // 4}",
            score=float(chance.random() < 0.5),
            tokens=chance.randint(50, 150),
            parts={},
            sketch=sketch_of(" ".join(chance.choices(WORDS, k=40))),
        )
        for place in range(count)
    ]


def changed(one: Watched, **to: object) -> Watched:
    values = {name: getattr(one, name) for name in ("group", "task", "score", "tokens", "parts", "sketch")}
    return Watched(**(values | to))  # type: ignore[arg-type]


def test_healthy_records_have_no_sign() -> None:
    healthy = records()
    length, repeats = reward_watch.by_length(healthy), reward_watch.repeats(healthy)
    assert length is not None
    assert abs(length.correlation) < 0.3
    assert length.growth == pytest.approx(1, abs=0.2)
    assert repeats is not None
    assert (repeats.within, repeats.within_score, repeats.across, repeats.gain, repeats.records) == (0, 0, 0, 0, 160)
    assert reward_watch.votes(healthy) is None, "no judge has voted"
    assert reward_watch.divergence(healthy, "polite") is None, "no scorer watches"
    assert reward_watch.by_length(healthy[:40]) is None
    assert reward_watch.repeats(healthy[:40]) is None


def test_length_that_earns_score_is_seen_inside_groups_only() -> None:
    healthy = records()
    earned = [changed(one, tokens=int((1 + place / 80) * (100 + 50 * one.score))) for place, one in enumerate(healthy)]
    length = reward_watch.by_length(earned)
    assert length is not None
    assert length.correlation > 0.8
    assert length.growth > 1.3
    # If hard tasks have long answers and low scores, length correlates with score between groups, but not inside them.
    between = [changed(one, tokens=one.tokens + 1000 * (place // 4 % 2)) for place, one in enumerate(healthy)]
    length = reward_watch.by_length(between)
    assert length is not None
    assert abs(length.correlation) < 0.3


def test_answers_to_several_tasks_that_score_more_are_counted() -> None:
    healthy = records()
    flattering = [sketch_of(SAY.format(place, 2 * place)) for place in range(160)]
    found = [
        changed(one, score=1.0, sketch=flattering[place]) if place % 2 else changed(one, score=0.25)
        for place, one in enumerate(healthy)
    ]
    repeats = reward_watch.repeats(found)
    assert repeats is not None
    assert (repeats.across, repeats.within, repeats.gain) == (0.5, 0.5, 0.75)
    said = [sketch_of(f"{WORDS[place // 4]} " * 12 + "and that is all") for place in range(64)]
    own = [changed(one, score=0.25, sketch=said[place]) for place, one in enumerate(healthy[:64])]
    repeats = reward_watch.repeats(own)
    assert repeats is not None
    assert (repeats.within, repeats.within_score, repeats.across) == (1, 0.25, 0)


def test_texts_are_compared_by_their_phrases() -> None:
    assert sketch_of("42") is None
    assert sketch_of(SAY.format(1, 2)) == sketch_of(SAY.format(30, 4).upper()), "numbers and case make no difference"
    assert sketch_of(SAY) != sketch_of(SAY.replace("second", "fourth"))


def test_judge_that_contradicts_itself_is_named() -> None:
    voted = [
        changed(one, parts={"right/agreement": 1.0, "polite/agreement": 0.6 if place % 4 == 0 else 1.0, "polite": 1.0})
        for place, one in enumerate(records())
    ]
    votes = reward_watch.votes(voted)
    assert votes is not None
    assert (votes.judge, votes.split, votes.records) == ("polite", 0.25, 160)


def test_score_that_rises_while_a_watcher_falls_is_a_divergence() -> None:
    def with_watcher(watched: float) -> list[Watched]:
        older = [changed(one, score=float(place % 4 < 1)) for place, one in enumerate(records(80))]
        newer = [changed(one, score=float(place % 4 < 3)) for place, one in enumerate(records(80))]
        said = [one.score for one in older] + [one.score + watched for one in newer]
        return [changed(one, parts={"w": part}) for one, part in zip([*older, *newer], said, strict=True)]

    falls = reward_watch.divergence(with_watcher(-1.5), "w")
    assert falls is not None
    assert falls.score == (0.25, 0.75)
    assert falls.watched[0] > falls.watched[1]
    assert falls.errors > 4
    rises = reward_watch.divergence(with_watcher(0.6), "w")
    assert rises is not None
    assert rises.errors == 0
