r"""Replaces half characters in JSON, which no parser of messages accepts as text.

Programs that cut a text in UTF-16, such as JavaScript, write half of an emoji as a lone surrogate (`\ud83d`). Others
cut bytes within a character. Both become the replacement character, so that one wrong letter does not cost an answer.
"""

from __future__ import annotations

import codecs
import re

_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_BEGUN = r"\\(?:u[0-9a-fA-F]{0,3})?"
_ESCAPE = re.compile(
    rf"{_HIGH}{_LOW}|(?P<unfinished>(?:{_HIGH}(?:{_BEGUN})?|{_BEGUN})\Z)|(?P<half>{_HIGH}|{_LOW})|\\.", re.DOTALL
)
"""Each escape of a JSON string. An escape at the end of a piece may go on in the next piece."""


class WholeCharacters:
    """The same JSON in whole characters, piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unfinished = ""

    def feed(self, piece: bytes) -> bytes:
        text = self._unfinished + self._decoder.decode(piece)
        self._unfinished = ""
        return _ESCAPE.sub(self._replaced, text).encode()

    def end(self) -> bytes:
        return (self._unfinished + self._decoder.decode(b"", final=True)).encode()

    def _replaced(self, escape: re.Match[str]) -> str:
        if escape["unfinished"]:
            self._unfinished = escape[0]
            return ""
        return r"\ufffd" if escape["half"] else escape[0]


def in_whole_characters(message: bytes) -> bytes:
    whole = WholeCharacters()
    return whole.feed(message) + whole.end()
