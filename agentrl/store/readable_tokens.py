"""Makes documents of a run's database readable for people.

`python -m agentrl.store.readable_tokens [--tokenizer DIR] [FILE]`: a model call (`DispatchedSamplingTask`) has its
token ids and log-probs as packed bytes. `readable` replaces them by lists of numbers, and a tokenizer adds their text.

Invariants:
- Everything else in a document stays what it was.
- A document that is not a model call stays as it is; a damaged one is refused. Nothing is guessed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bson import json_util
from bson.errors import BSONError

from agentrl.errors import AgentrlError, ConfigError, DiskError, ExitCode, UsageError
from agentrl.tokens.binary_format import unpack_floats, unpack_ids

IDS = ("prompt", "output")
FLOATS = ("log_probs",)
_AS_STORED = json_util.JSONOptions(tz_aware=True, json_mode=json_util.JSONMode.RELAXED)


def readable(document: Mapping[str, Any], tokenizer: str | Path | None = None) -> dict[str, Any]:
    """A copy of the document with lists of numbers instead of bytes. `tokenizer` is the directory of a model, for
    `prompt_text` and `output_text`."""
    made = dict(document)
    for name in IDS:
        if isinstance(packed := document.get(name), bytes):
            made[name] = unpack_ids(packed)
            if tokenizer is not None:
                made[f"{name}_text"] = _tokenizer(str(tokenizer)).decode(made[name])
    for name in FLOATS:
        if isinstance(packed := document.get(name), bytes):
            made[name] = unpack_floats(packed)
    return made


_tokenizers: dict[str, Any] = {}


def _tokenizer(path: str) -> Any:
    if path not in _tokenizers:
        try:
            # Imported late, because a host that only watches runs has no tokenizers.
            from agentrl.chat.tokenizer import Tokenizer
        except ImportError as missing:
            raise ConfigError(
                f"Text needs the package {missing.name}.", hint="`pip install 'agentrl[train]'`"
            ) from missing
        _tokenizers[path] = Tokenizer(path)
    return _tokenizers[path]


def documents(source: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Extended JSON as mongoexport and mongosh write it: one document a line, or one JSON array or document."""
    lines = (line for line in source if line.strip())
    first = next(lines, "")
    try:
        whole: Iterable[Any] = itertools.chain([_parsed(first)] if first else [], map(_parsed, lines))
    except UsageError:
        whole = [_parsed("".join([first, *lines]))]
    for each in whole:
        for document in each if isinstance(each, list) else [each]:
            if not isinstance(document, dict):
                raise UsageError(f"{str(document)[:40]!r} is not a document.", hint="Give what mongoexport writes.")
            yield document


def _parsed(text: str) -> Any:
    try:
        return json_util.loads(text, json_options=_AS_STORED)
    except (ValueError, TypeError, BSONError) as wrong:
        raise UsageError(
            f"This is not extended JSON: {wrong}.",
            hint="`mongosh --quiet --eval 'EJSON.stringify(db.DispatchedSamplingTask.findOne())'` prints it.",
        ) from wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.store.readable_tokens", description=__doc__)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    given = parser.parse_args()
    try:
        try:
            text = given.file.open() if given.file else sys.stdin
        except OSError as broken:
            raise DiskError(f"{given.file} cannot be read: {broken.strerror}.") from broken
        with text:
            for document in documents(text):
                print(json_util.dumps(readable(document, given.tokenizer), json_options=_AS_STORED, ensure_ascii=False))
    except AgentrlError as failed:
        print(json_util.dumps({"failed": {"message": failed.message, "hint": failed.hint, "code": failed.exit_code}}))
        return failed.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
