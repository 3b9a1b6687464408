"""Trains the tokenizer of a model that the run builds.

Invariants:
- Every byte has an id, so any text can be encoded.
- Digits are single tokens, so numbers are copied digit by digit.
- Control tokens are special, while tags of tool calls and answers are ordinary tokens that a model may write.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

CONTROL_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
TAGS = ("<tool_call>", "</tool_call>", "<answer>", "</answer>")
MERGED_SIZE = 96
"""Merges besides bytes, control tokens and tags: enough for the words of a small task."""


def build_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE trained on `texts`. The same texts give the same tokenizer."""
    built = tokenizers.Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    built.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(CONTROL_TOKENS) + MERGED_SIZE,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tags = str.maketrans({"<": " ", ">": " "})
    # Tags are single tokens, so no merge should be spent on their spelling.
    built.train_from_iterator((_without_tags(text).translate(tags) for text in texts), trainer)
    built.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return built


def _without_tags(text: str) -> str:
    for token in (*TAGS, *CONTROL_TOKENS):
        text = text.replace(token, " ")
    return text
