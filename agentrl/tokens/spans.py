"""Spans: the stored form of a token tree, and what can be computed from it without the tree.

Invariants:
- a list of spans is in depth-first order: a parent precedes its children, and a subtree is contiguous;
- a span points into the tokens of one call: into the output if the model generated them, else into the whole prompt;
- each generated token trains as exactly one (record, token) pair, in however many branches it is context, with the
  log-prob, version and parameters of its call at `Span.start + offset`; prompt tokens never train.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

ROOT = -1

SpanKind = Literal["model", "environment"]


class Span(msgspec.Struct, frozen=True):
    parent: int
    """Index of the span before it; ROOT if it begins a sequence."""
    kind: SpanKind
    call: int
    """Index of the call whose tokens these are."""
    start: int
    """Where the tokens begin in the output (model) or in the whole prompt (environment) of the call."""
    length: int


class StoredCall(msgspec.Struct, frozen=True):
    """A stored call: its prompt lacks the part that its base call stores."""

    prompt: list[int]
    """The ids after `base_length`."""
    output: list[int]
    base: int | None = None
    """Index of the call whose prompt and output are the beginning of this prompt."""
    base_length: int = 0


def stored_slice(span: Span, base_length: int, stored: int) -> slice:
    """The slice of the stored output (model) or stored prompt (environment) of its call that has the tokens of a span;
    the call has `stored` tokens. A span is never in the part of the prompt that the base call stores."""
    start = span.start if span.kind == "model" else span.start - base_length
    if start < 0 or start + span.length > stored:
        raise ValueError(f"{span} points beyond the tokens that call {span.call} has")
    return slice(start, start + span.length)


def span_ids(span: Span, calls: Mapping[int, StoredCall]) -> list[int]:
    call = calls[span.call]
    ids = call.output if span.kind == "model" else call.prompt
    return ids[stored_slice(span, call.base_length, len(ids))]


def full_prompts(calls: Mapping[int, StoredCall]) -> dict[int, list[int]]:
    """The whole prompt of every call. A base has a smaller index than its calls."""
    prompts: dict[int, list[int]] = {}
    for index in sorted(calls):
        call = calls[index]
        if call.base is None:
            prompts[index] = list(call.prompt)
            continue
        if call.base not in prompts:
            raise ValueError(f"call {index} builds on call {call.base}, which is not before it")
        known = prompts[call.base] + calls[call.base].output
        if call.base_length > len(known):
            raise ValueError(
                f"call {index} keeps {call.base_length} tokens of call {call.base}, which has {len(known)}"
            )
        prompts[index] = known[: call.base_length] + list(call.prompt)
    return prompts


def trained_spans(spans: Sequence[Span], context: Collection[int] = ()) -> list[int]:
    """Indices of the spans whose tokens train. `context`: calls whose tokens do not train in this record."""
    return [index for index, span in enumerate(spans) if span.kind == "model" and span.call not in context]
