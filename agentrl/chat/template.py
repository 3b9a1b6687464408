"""Converts messages to token ids, one segment at a time.

Invariants:
- A trajectory is a concatenation of segments, and the ids of a segment never depend on its neighbors: sampled ids are
  unchanged, and text of the environment is tokenized separately.
- Data for supervised training is made by the same functions.
- A segment of the environment ends with the opening of the next assistant turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from agentrl.chat import jinja_rendering, prefix_check, tool_call_parsers
from agentrl.chat.jinja_rendering import ANY, Message, Part, merged
from agentrl.chat.markups import markup_of
from agentrl.chat.own_template import OwnTemplate, said
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.tokens import image_ids

ImageTokens = Mapping[str, Sequence[int]]
"""The tokens of each image, by its name in texts."""
NO_IMAGES: ImageTokens = MappingProxyType({})


class Writer(Protocol):
    """How one model writes a conversation. It has the methods of Template, which return parts instead of ids."""

    @property
    def stops(self) -> Sequence[str]:
        """Control tokens that end a turn of the assistant; the first one closes a turn that was cut off."""
        ...

    @property
    def openings(self) -> Sequence[tuple[str, Sequence[Part]]]:
        """Roles and the openings of their messages."""
        ...

    @property
    def tool_wrap(self) -> tuple[str, str]:
        """Text around each tool result, if all results are one message; otherwise empty."""
        ...

    def first(
        self, system: str, tools: Sequence[ToolSpec], query: str, earlier: Sequence[tuple[str, str]]
    ) -> list[Part]: ...

    def whole(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Message]) -> list[Part]: ...

    def tool_results(self, results: Sequence[str], calls: Sequence[Call], ended: bool) -> list[Part]: ...

    def user(self, text: str, ended: bool) -> list[Part]: ...

    def assistant(self, text: str) -> list[Part]: ...


class Template:
    """The template of one model: its own, or the markup that its tokenizer has control tokens for."""

    def __init__(self, tokenizer: Tokenizer, writer: Writer | None = None) -> None:
        self.tokenizer = tokenizer
        self.writer = writer or markup_of(tokenizer)
        self._stops = [tokenizer.control(token) for token in self.writer.stops]

    @classmethod
    def of(cls, directory: Path, variables: Mapping[str, Any] | None = None) -> Template:
        """The template of the model in a directory. `variables` are for the model's own template, such as
        `enable_thinking`."""
        tokenizer = Tokenizer(directory)
        source, names = jinja_rendering.source_of(directory)
        if not source:
            return cls(tokenizer)
        rendering = jinja_rendering.Rendering(source, names, tokenizer, variables or {})
        ends = jinja_rendering.end_tokens(directory, tokenizer)
        return cls(tokenizer, OwnTemplate(rendering, ends, jinja_rendering.image_token(directory, tokenizer)))

    @property
    def has_images(self) -> bool:
        """Whether images can be written into messages."""
        return isinstance(self.writer, OwnTemplate) and self.writer.has_images

    def rewrites(self) -> list[prefix_check.Rewrite]:
        """The places where the model's own template rewrites earlier turns of a conversation. Raises ConfigError for a
        template that cannot write a canonical one."""
        return prefix_check.rewrites(self.writer) if isinstance(self.writer, OwnTemplate) else []

    def parsers(self) -> tuple[str, ...]:
        """The parsers that can read calls as the model's own template writes them; empty if it writes no calls."""
        if not isinstance(self.writer, OwnTemplate) or not self.writer.has_results:
            return ()
        call = Call("add", {"a": 1, "b": "two"})
        return tool_call_parsers.reading("".join(text for _, text in self.writer.sampled("", [call])[:-1]), call)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn of the assistant."""
        return tuple(self._stops)

    def first(
        self,
        system: str,
        tools: Sequence[ToolSpec],
        query: str,
        *,
        earlier: Sequence[tuple[str, str]] = (),
        images: ImageTokens = NO_IMAGES,
    ) -> list[int]:
        """The first prompt: instructions, tools, earlier messages, the query, and the opening of the assistant's
        turn. `images` has the tokens of the images that the texts name."""
        return self._encode(self.writer.first(system, tools, query, earlier), images)

    def rewritten(
        self,
        sampled: list[int],
        system: str,
        tools: Sequence[ToolSpec],
        messages: Sequence[Message],
        *,
        images: ImageTokens = NO_IMAGES,
    ) -> list[int]:
        """The prompt of this conversation, rendered as a whole. Returns `sampled`, the prompt built from sampled
        tokens, if its text is the same."""
        written = self._encode(self.writer.whole(system, tools, messages), images)
        return sampled if self.tokenizer.decode(written) == self.tokenizer.decode(sampled) else written

    def said(self, text: str, content: str, calls: Sequence[Call]) -> Message:
        """A turn of the assistant as a message. Its `text` is kept if it has no control token; otherwise the template
        writes `content` and calls."""
        controls = any(token in text for token in self.tokenizer.control_tokens())
        return said(content, calls) if controls else said(text)

    def tool_results(
        self,
        results: Sequence[str],
        *,
        calls: Sequence[Call] = (),
        ended: bool = True,
        images: ImageTokens = NO_IMAGES,
    ) -> list[int]:
        """The ids that the environment adds after a turn of the assistant. `calls` are the calls that the first results
        answer.

        `ended` is False if the model was cut off before its end token; then the segment begins with that token, which
        belongs to the environment.
        """
        return self._encode(self.writer.tool_results(results, calls, ended), images)

    def user(self, text: str, *, ended: bool = True, images: ImageTokens = NO_IMAGES) -> list[int]:
        """A message of the user after a turn of the assistant, such as an error to correct."""
        return self._encode(self.writer.user(text, ended), images)

    def assistant(self, text: str) -> list[int]:
        """The ids that a model would have sampled for `text`, with the end token; for supervised data."""
        return self._encode(self.writer.assistant(text))

    def messages(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """The role and text of each message in a part of a prompt. Text outside of messages has no role."""
        parts = self._decode(ids)
        found: list[tuple[str, str]] = []
        at = 0
        while at < len(parts):
            role, text, at = self._message_at(parts, at)
            if text:
                found.append((role, text))
        return found

    def _message_at(self, parts: Sequence[Part], at: int) -> tuple[str, str, int]:
        """The role and text of the message that begins here, and the position of the next one."""
        if (begun := self._begun(parts, at)) is None:
            kind, text = parts[at]
            return "", text if kind == "text" else "", at + 1
        role, text, at = begun
        # A turn of the assistant may contain control tokens that the model wrote.
        while role == "assistant" and at < len(parts) and parts[at][1] not in self.writer.stops:
            if self._begun(parts, at) is not None:
                break
            text, at = text + parts[at][1], at + 1
        return role, text, at

    def _begun(self, parts: Sequence[Part], at: int) -> tuple[str, str, int] | None:
        """Role and first text of the message whose opening is here, and the position after it; None if there is no
        opening here."""
        for role, opening in self._openings:
            if (found := _follows(parts, at, opening)) is not None:
                return role, *found
        return None

    @cached_property
    def _openings(self) -> list[tuple[str, Sequence[Part]]]:
        """Openings, the longest first, because one may be the beginning of another."""
        return sorted(self.writer.openings, key=lambda item: -sum(len(text) + 1 for _, text in item[1]))

    def _decode(self, ids: Sequence[int]) -> list[Part]:
        """The parts of these ids. An image becomes words within its text; the control tokens that frame it are left
        out."""
        names = {self.tokenizer.control(name): name for name in self.tokenizer.control_tokens()}
        parts: list[Part] = []
        texts: list[int] = []
        framed = False
        for token in ids:
            if image_ids.is_image(token):
                if not framed and parts and parts[-1][0] == "control" and not texts:
                    parts.pop()
                framed = True
                if not texts or texts[-1] != token:
                    texts.append(token)
            elif token not in names:
                texts.append(token)
                framed = False
            elif framed:
                framed = False
            else:
                if texts:
                    parts.append(("text", self.tokenizer.decode(texts)))
                texts = []
                parts.append(("control", names[token]))
        found = [*parts, ("text", self.tokenizer.decode(texts))] if texts else parts
        return merged(found)

    def _encode(self, parts: Sequence[Part], images: ImageTokens = NO_IMAGES) -> list[int]:
        """The ids of these parts. Joins neighboring texts first, because a model's own template tokenizes a message as
        a whole."""
        ids: list[int] = []
        text = ""
        for kind, value in parts:
            if kind == "text":
                text += value
                continue
            ids += self.tokenizer.encode(text) if text else []
            ids += images[value] if kind == "image" else [self.tokenizer.control(value)]
            text = ""
        return ids + (self.tokenizer.encode(text) if text else [])


def _follows(parts: Sequence[Part], at: int, opening: Sequence[Part]) -> tuple[str, int] | None:
    """The text after this opening, and the position after that text; None if the parts do not begin with the
    opening."""
    *before, last = opening
    if len(parts) - at < len(before) or not all(map(_matches, parts[at:], before)):
        return None
    at += len(before)
    if last[0] == "control":
        if at >= len(parts) or parts[at] != last:
            return None
        at, last = at + 1, ("text", "")
    if at < len(parts) and parts[at][0] == "text":
        text = parts[at][1]
        return (text.removeprefix(last[1]), at + 1) if text.startswith(last[1]) else None
    return ("", at) if not last[1] else None


def _matches(part: Part, pattern: Part) -> bool:
    begin, any_text, end = pattern[1].partition(ANY)
    if not any_text:
        return part == pattern
    return part[0] == pattern[0] and part[1].startswith(begin) and part[1].endswith(end)
