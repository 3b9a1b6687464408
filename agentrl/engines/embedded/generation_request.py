"""One call inside the engine, from its arrival to its end.

Invariants: `versions` covers exactly the tokens of `output`; a request ends once and calls `on_end` once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.engines.embedded.served_model import NO_IMAGES, ServedModel
from agentrl.engines.embedded.token_sampling import Draw, chance
from agentrl.engines.interface import EngineError, Finish, Sampling
from agentrl.images.patches import Patches
from agentrl.tokens import image_ids


def conversation_of(rid: str) -> str:
    """Calls of one conversation share everything up to the last slash: `task#r1.s2.a1/c3`."""
    return rid.rpartition("/")[0] or rid


@dataclass(slots=True, eq=False)
class Request:
    """A call and the output that it has so far."""

    rid: str
    prompt: list[int]
    sampling: Sampling
    seed: int
    images: Mapping[int, Patches] = field(default_factory=lambda: NO_IMAGES)
    """The patches of the images that its prompt shows, by number."""
    pinned: ServedModel | None = None
    """The weights that it requires; None uses the current ones, token by token."""
    on_token: Callable[[Request], None] | None = None
    on_end: Callable[[Request], None] = lambda request: None
    output: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    cached_tokens: int = 0
    finish: Finish | None = None
    error: EngineError | None = None
    begun: bool = False
    """Whether it has had a slot. Its cached tokens are counted only the first time."""

    @property
    def conversation(self) -> str:
        return conversation_of(self.rid)

    @property
    def ids(self) -> list[int]:
        """All ids before its next token."""
        return self.prompt + self.output

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    def draw(self) -> Draw:
        """The parameters by which its next token is sampled."""
        return Draw(self.sampling, chance(self.seed, len(self.output)), self.output)

    def accept(self, token: int, log_prob: float, version: int) -> None:
        self.output.append(token)
        self.log_probs.append(log_prob)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def end(self, finish: Finish) -> None:
        if not self.ended:
            self.finish = finish
            self.on_end(self)

    def fail(self, error: EngineError) -> None:
        if not self.ended:
            self.error = error
            self.on_end(self)


def problem_of(prompt: Sequence[int], images: Mapping[int, Patches], vocabulary: int) -> str:
    """Why a model with a vocabulary of this size cannot continue a prompt; empty if it can."""
    if prompt and min(prompt) >= 0 and max(prompt) < vocabulary:
        return ""
    runs = list(image_ids.runs(prompt)) if images else []
    if not runs or not all(0 <= token < vocabulary for number, ids in runs if number < 0 for token in ids):
        others = ", and ids of images that come along" if images else ""
        return f"The prompt must be ids from 0 to {vocabulary - 1}, at least one{others}."
    for number, ids in runs:
        if number >= 0 and (number not in images or len(ids) != images[number].tokens):
            return f"The prompt has {len(ids)} tokens of an image {image_ids.label(number)}, which did not come along."
    return ""
