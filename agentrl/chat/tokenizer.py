"""Wraps the tokenizer of one model: text to ids and back.

Invariants:
- Only `control` returns the id of a control token. Encoded text never contains one, so a tool result with `<|end|>`
  stays text.
- Decoding keeps control tokens by default, because the text should show all ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from agentrl.errors import ConfigError
from agentrl.tokens import image_ids

END_TOKENS = ("<|end|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")
"""End tokens of the known families of models."""
REPLACED = "\ufffd"
"""The character that the decoder writes for bytes that do not form a character."""
MAX_CHARACTER_BYTES = 4
"""The most bytes, and therefore the most ids, of a character in UTF-8."""
BEFORE = 8
"""This many earlier ids are enough to find where a character begins."""


class Tokenizer:
    """Reads `tokenizer.json` from a model directory, or that file itself."""

    def __init__(self, path: Path | str) -> None:
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            self._inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as broken:  # the library raises no narrower exception
            raise ConfigError(f"The tokenizer {file} cannot be read: {broken}.") from broken
        # Special tokens within text are ordinary text.
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant's turn."""
        return tuple(found for token in END_TOKENS if (found := self.find(token)) is not None)

    def find(self, token: str) -> int | None:
        """The id of a token by its name; None if it does not exist."""
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)

    def control_tokens(self) -> tuple[str, ...]:
        """The names of all special tokens. Encoded text never contains them."""
        added = self._inner.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special and token.content)

    def control(self, token: str) -> int:
        """The id of a control token. Raises ConfigError if this tokenizer has no such token."""
        found = self.find(token)
        if found is None:
            raise ConfigError(f"The tokenizer has no token {token}, which its chat template needs.")
        return found

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, without additions and without control tokens."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], *, drop_control: bool = False) -> str:
        """The text of these ids. The tokens of an image become a word for it."""
        listed = list(ids)
        if listed and image_ids.is_image(max(listed)):
            return "".join(
                self.decode(part, drop_control=drop_control) if number < 0 else f"[image {image_ids.label(number)}]"
                for number, part in image_ids.runs(listed)
            )
        return str(self._inner.decode(listed, skip_special_tokens=drop_control))

    def pieces(self, ids: Sequence[int], first: int = 0) -> list[str]:
        """The text that each id from `first` on adds. A character of several ids belongs to the last of them. Earlier
        ids are decoded too, because some decoders drop a leading space."""
        made = list[str]()
        known = begun = start = max(0, first - BEFORE)
        for at in range(start, len(ids)):
            before, now = self.decode(ids[known:begun]), self.decode(ids[known : at + 1])
            if now.endswith(REPLACED) and at - begun < MAX_CHARACTER_BYTES - 1 and at + 1 < len(ids):
                made.append("")
                continue
            made.append(now[len(before) :])
            known, begun = begun, at + 1
        return made[first - start :]
