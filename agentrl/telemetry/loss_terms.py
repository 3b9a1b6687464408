"""The terms of the policy loss as metrics of a step: which of them are active, and the share of pairs each touched.

Invariants:
- a term is active in a step if and only if the step has its metric, also if it touched no pair;
- exactly one form of the loss is active; its metric is the share of pairs whose gradient it uses unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.telemetry.control_plane_metrics import Metric

_PREFIX = "term_"

_FORMS = {
    "grpo": "the clipped ratio",
    "gspo": "the clipped ratio of whole records",
    "cispo": "log-probs weighed by a capped ratio",
    "minirl": "masked log-probs weighed by a capped ratio",
    "ppo": "the clipped ratio, with the advantages of a critic",
    "ce-grpo": "the ratio with a share of the gradient beyond the clip",
}
_ADDITIONS = {
    "clip": "beyond the clip",
    "dual_clip": "beyond dual_clip",
    "cap": "above ratio_cap",
    "decay": "beyond the bounds of decay",
    "weight": "with a weight at weight_cap",
    "token_mask": "outside masks.token",
    "sequence_mask": "in records outside masks.sequence",
    "geometric_mask": "in records outside masks.geometric",
    "k2_limit": "in records above masks.k2",
    "k3_limit": "in records above masks.k3",
    "value": "whose value is beyond critic.clip",
    "reference": "that differ from the reference",
}


def metric_of(term: str) -> str:
    return _PREFIX + term.replace("-", "_")


TERMS: tuple[Metric, ...] = (
    *(Metric(metric_of(name), "", f"Pairs that {name} trains as they are: {what}.") for name, what in _FORMS.items()),
    *(Metric(metric_of(name), "", f"Pairs {what}.") for name, what in _ADDITIONS.items()),
)
_FORM_METRICS = {metric_of(name): (name, what) for name, what in _FORMS.items()}
_ADDITION_METRICS = {metric_of(name): (name, what) for name, what in _ADDITIONS.items()}


def is_term(metric: str) -> bool:
    return metric in _FORM_METRICS or metric in _ADDITION_METRICS


def in_words(metrics: Mapping[str, object]) -> list[str]:
    """One line for each active term, the form of the loss first; empty for a step without these metrics."""
    found = [
        f"{name} ({what}): {_percent(share)} of tokens as they are"
        for metric, (name, what) in _FORM_METRICS.items()
        if isinstance(share := metrics.get(metric), int | float)
    ]
    return found + [
        f"{name}: {_percent(share)} of tokens {what}"
        for metric, (name, what) in _ADDITION_METRICS.items()
        if isinstance(share := metrics.get(metric), int | float)
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
