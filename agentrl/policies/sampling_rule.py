"""How tokens are chosen from the distribution of the model.

Invariants:
- the neutral value of a parameter leaves softmax(logits / temperature) as it is;
- tasks and calls keep the values that are not neutral, and always temperature and top_p.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

NEUTRAL: Mapping[str, tuple[float | str | None, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, -1, 0),
    "min_p": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "regex": (None, ""),
    "json_schema": (None, ""),
    "ebnf": (None, ""),
}
"""Values under which the engine's distribution is softmax(logits / temperature)."""
_ALWAYS_KEPT = ("temperature", "top_p")
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0.01, 2),
}


class SamplingRule(msgspec.Struct, frozen=True, kw_only=True):
    """Penalties change the logits, the temperature scales them, and the three limits cut the distribution."""

    temperature: float = 1.0
    """0 takes the likeliest token and returns its log-prob at temperature 1."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that together reach this probability."""
    top_k: int = -1
    """Keeps this many of the likeliest tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Keeps tokens with at least this share of the probability of the likeliest one."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token, once for each time that it is in the output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of a token that is in the output."""
    repetition_penalty: float = 1.0
    """Divides a positive logit, and multiplies a negative logit, of a token that is in the output."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Reads the rule from a document: missing keys are neutral, and keys of other settings are ignored."""
        return msgspec.convert({name: values[name] for name in cls.__struct_fields__ if name in values}, cls)

    @property
    def penalizes(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    def kept(self) -> dict[str, Any]:
        """The values for a document."""
        return {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name in _ALWAYS_KEPT or value not in NEUTRAL.get(name, ())
        }

    def problem(self) -> str:
        """Empty, or what is invalid."""
        for name, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, name)) <= most:
                return f"{name} must be from {least:g} to {most:g}, not {value}"
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p must be above 0 and at most 1, not {self.top_p}"
        if self.repetition_penalty != 1.0 and (self.frequency_penalty or self.presence_penalty):
            return (
                "repetition_penalty must not be combined with frequency_penalty or presence_penalty: "
                "engines apply them in different orders"
            )
        if self.top_k < -1:
            return f"top_k must be at least 1, or 0 or -1 for all tokens, not {self.top_k}"
        return ""
