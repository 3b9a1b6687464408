"""Random trajectories: calls that extend, cut or repeat earlier ones, as agents make them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agentrl.tokens.token_tree import TokenTree
from agentrl.training.batch import Batch, Segment, Trajectory, checked

VOCABULARY = 200
Call = tuple[int, list[int], list[int]]


def trajectory_of_calls(
    calls: Sequence[Call], record: str, *, group: str = "", advantage: float = 1.0, version: int = 1, heat: float = 1.0
) -> Trajectory:
    """A trajectory as from the store, with log-probs that depend only on the place of a token."""
    tree = TokenTree.from_calls(calls)
    segments = []
    for span in tree.spans:
        trains = span.kind == "model"
        places = range(span.start, span.start + span.length)
        segments.append(
            Segment(
                parent=span.parent,
                ids=tree.ids(span),
                trains=trains,
                log_probs=[-4.8 - 0.1 * ((span.call * 7 + at) % 20) for at in places] if trains else [],
                versions=[(version, span.length)] if trains else [],
                temperature=heat,
            )
        )
    return checked(Trajectory(record=record, group=group, segments=segments, advantage=advantage))


def chain(chance: random.Random, prompt: Sequence[int], turns: int) -> list[Call]:
    """Every prompt extends the call before it."""
    calls: list[Call] = []
    whole = list(prompt)
    for index in range(turns):
        output = some(chance, 2, 6)
        calls.append((index, list(whole), output))
        whole += output + some(chance, 1, 4)
    return calls


def fork(chance: random.Random, prompt: Sequence[int], turns: int) -> list[Call]:
    """A chain whose context is edited sometimes."""
    calls = chain(chance, prompt, turns)
    for index in range(turns, turns + 2):
        _, before, output = calls[chance.randrange(len(calls))]
        known = before + output
        kept = known[: chance.randrange(1, len(known) + 1)]
        calls.append((index, kept + some(chance, 0, 3), some(chance, 1, 5)))
    return calls


def some(chance: random.Random, least: int, most: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(chance.randint(least, most))]


def batch_of(trajectories: Sequence[Trajectory], ages: dict[int, int] | None = None) -> Batch:
    versions = {version for one in trajectories for version in one.versions}
    known = ages if ages is not None else dict.fromkeys(versions, 0)
    return Batch(step=1, base_version=1, trajectories=list(trajectories), ages=known)


def group(chance: random.Random, n: int, *, name: str = "g", make: object = chain) -> list[Trajectory]:
    """Members that begin alike, some of which sampled the same ids."""
    prompt = some(chance, 5, 9)
    members = []
    calls: list[Call] = []
    for seat in range(n):
        if not calls or chance.random() < 0.7:
            calls = make(chance, prompt, chance.randint(1, 3))  # type: ignore[operator]
        members.append(
            trajectory_of_calls(calls, f"{name}.{seat}", group=name, advantage=chance.uniform(-2, 2), version=seat % 3)
        )
    return members
