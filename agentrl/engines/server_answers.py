"""What the answers of inference servers have in common: JSON, and failures as a status with a sentence."""

from __future__ import annotations

from typing import NoReturn, TypeVar

import msgspec

from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineError,
    EngineRubbishError,
    VersionNotServedError,
)

T = TypeVar("T")


class _Message(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _Message | str = ""
    message: str = ""


def decoded(data: bytes, kind: type[T], server: str = "The engine") -> T:
    """`server` names the server in the sentence of the error."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise EngineRubbishError(f"{server}'s answer cannot be read: {wrong}.") from wrong


def raise_for(status: int, content: bytes, server: str = "The engine") -> NoReturn:
    """Raises the error that an answer other than 200 stands for."""
    try:
        failure = msgspec.json.decode(content, type=_Failure)
        sentence = (failure.error if isinstance(failure.error, str) else failure.error.message) or failure.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        sentence = ""
    sentence = sentence or f"{server} answers with status {status}."
    match status:
        case 409:
            raise VersionNotServedError(sentence)
        case 401 | 403:
            raise CallRefusedError(sentence, hint="The token is in http.token of the run's state directory.")
        case 400 | 404 | 405 | 413 | 422:
            raise CallRefusedError(sentence)
        case 503:
            raise EngineBusyError(sentence)
        case _:
            raise EngineError(sentence)
