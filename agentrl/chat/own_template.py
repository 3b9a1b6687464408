"""Writes conversations with the chat template that comes with a model.

A template renders whole conversations, but an episode needs the tokens that each turn adds. They are found by rendering
a small conversation of the same shape: the text after the assistant's turn.

Invariants:
- Added tokens never depend on the assistant's text: sampled ids stay as they are.
- A role or a list of tools that the template refuses or leaves out is written as text of a message that it supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from agentrl.chat.jinja_rendering import ANY, Message, Part, RefusedError, Rendering, after, merged
from agentrl.chat.markups import hermes_tools
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.tokens.image_marks import is_stored, mark, names_in, pieces, words

_QUESTION: Message = {"role": "user", "content": "Question"}
_ANSWER = "Answer"
_NAME = "0" * 64
"""The name of an example image."""
_TOOL = ToolSpec(name="look_it_up", description="Looks it up.", schema={"type": "object", "properties": {}})
_ARGUMENT = "Argument"
_CALL = Call(_TOOL.name, {"key": _ARGUMENT})
_WRAP = ("<tool_response>\n", "\n</tool_response>")
"""Around results for a template without messages of tools."""


class OwnTemplate:
    """A `template.Writer`."""

    def __init__(self, rendering: Rendering, ends: Sequence[str] = (), placeholder: str = "") -> None:
        """`ends`: control tokens at which the model's own configuration stops; `placeholder`: the control token for an
        image. Raises RefusedError if the template cannot write a question and an answer."""
        self._rendering = rendering
        self._placeholder = placeholder
        self._opened = rendering.parts([_QUESTION], opening=True)
        self._plain = self._through_stop([_QUESTION, said(_ANSWER)])
        self.has_system = self._shows("Instructions", [{"role": "system", "content": "Instructions"}, _QUESTION])
        self.has_tools = self._shows(_TOOL.name, [_QUESTION], [_TOOL])
        self.has_results = self._has_results()
        stops = [self._plain[-1][1], *([self._called([_CALL])[-1][1]] if self.has_results else []), *ends]
        self.stops = tuple(dict.fromkeys(stops))

    # ---- tokens that an episode adds ----

    def first(
        self, system: str, tools: Sequence[ToolSpec], query: str, earlier: Sequence[tuple[str, str]]
    ) -> list[Part]:
        return self.whole(system, tools, [*(_message(role, text) for role, text in earlier), _message("user", query)])

    def whole(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Message]) -> list[Part]:
        """The prompt of a conversation, rendered as a whole: the template may leave out thoughts of earlier turns."""
        if tools and not self.has_tools:
            system = f"{system}\n\n{hermes_tools(tools)}".strip()
        listed = list(messages)
        if system and self.has_system:
            listed.insert(0, _message("system", system))
        elif system:
            at = next(place for place, one in enumerate(listed) if one["role"] == "user")
            listed[at] = _message("user", f"{system}\n\n{listed[at]['content']}")
        if not self.has_results:
            listed = _without_tool_role(listed)
        return self._parts(listed, self._functions(tools), opening=True)

    def tool_results(self, results: Sequence[str], calls: Sequence[Call], ended: bool) -> list[Part]:
        if not self.has_results:
            return self.user("\n".join(f"{_WRAP[0]}{result}{_WRAP[1]}" for result in results), ended)
        known = [Call(one.name, _CALL.arguments) for one in calls[: len(results)]]
        known += [Call("unknown", _CALL.arguments)] * (len(results) - len(known))
        pairs = zip(results, known, strict=True)
        messages = [answered(result, call, number) for number, (result, call) in enumerate(pairs)]
        try:
            spoken, before = said("", known), self._called(known)
        except RefusedError:  # some templates allow one call in a turn, and any number of results
            spoken, before = said("", known[:1]), self._called(known[:1])
        return self._added(before, [_QUESTION, spoken, *messages], _ARGUMENT, ended)

    def user(self, text: str, ended: bool) -> list[Part]:
        return self._added(self._plain, [_QUESTION, said(_ANSWER), _message("user", text)], _ANSWER, ended)

    def sampled(self, text: str, calls: Sequence[Call] = ()) -> list[Part]:
        """The turn that a model would have sampled if it wrote exactly as the template does."""
        through = self._through_stop([_QUESTION, said(text, calls)])
        turn = after(through, self._opened)
        if turn is not None and text.strip() in "".join(part for _, part in turn):
            return turn
        # The template would change or leave out text of the model, such as its thoughts.
        return merged([("text", text), *(self.sampled("", calls) if calls else through[-1:])])

    def assistant(self, text: str) -> list[Part]:
        """The parts of an assistant's text. A text with the control tokens of a call stays unchanged, because models
        sample it so."""
        parts = list(self._rendering.split(text))
        written = {token for kind, token in parts if kind == "control"}
        if written and written <= self._writable:
            called = self.has_results and not written.isdisjoint(_controls(self._call_turn))
            return [*parts, ("control", self._called([_CALL])[-1][1] if called else self.stops[0])]
        return self.sampled(text)

    # ---- reading prompts back ----

    @cached_property
    def openings(self) -> list[tuple[str, list[Part]]]:
        question = str(_QUESTION["content"])
        found = [
            ("user", _until(self.user("Text", True), "Text")),
            ("assistant", _opening_after(self._opened, question)),
        ]
        if self.has_results:
            result = self.tool_results(["Text"], [_CALL], True)
            opening = [(kind, text.replace(_CALL.name, ANY)) for kind, text in _until(result, "Text")]
            found += [("tool", opening), ("assistant", _opening_after(result, "Text"))]
        if self.has_system:
            listed = [{"role": "system", "content": "Text"}, _QUESTION]
            opening = _until(self._rendering.parts(listed), "Text", begins=True)
            # Some templates write instructions into the first message of the user.
            if opening != _until(self._opened, question, begins=True):
                found.append(("system", opening))
        return found

    @cached_property
    def tool_wrap(self) -> tuple[str, str]:
        """The text around each tool result; empty unless the template writes two results as one piece of text."""
        if not self.has_results:
            return _WRAP
        for kind, text in self.tool_results(["First", "Second"], [_CALL, _CALL], True):
            if kind == "text" and "First" in text and "Second" in text:
                begin, between, _ = text.replace("Second", "First").split("First", 2)
                cut = next(cut for cut in range(len(between) + 1) if begin.endswith(between[cut:]))
                return between[cut:], between[:cut]
        return "", ""

    # ---- parts of small conversations ----

    def _added(self, before: Sequence[Part], messages: Sequence[Message], spoken: str, ended: bool) -> list[Part]:
        """The parts after the assistant's turn, whose text is `spoken`, up to the next opening."""
        parts = self._parts(messages, opening=True)
        stop = before[-1]
        left = after(parts, before)
        if left is None:  # the template writes the turn differently when something follows it
            tail = _from(parts, spoken)
            if not tail:
                raise RefusedError("The model's chat template leaves out the turn that another message follows.")
            at = tail.index(stop) if stop in tail else 0
            stop, left = tail[at], tail[at + 1 :]
        return left if ended else [stop, *left]

    def _parts(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, opening: bool = False
    ) -> list[Part]:
        """Renders messages, with images in place of their placeholder tokens."""
        texts = [str(message["content"]) for message in messages if message["role"] != "assistant"]
        names = list(filter(is_stored, names_in(*texts)))
        if not names:
            return self._rendering.parts(messages, tools, opening=opening)
        if not self._placeholder:
            raise RefusedError("The model reads no images.")
        parts = self._rendering.parts([_in_pieces(message) for message in messages], tools, opening=opening)
        written = [place for place, part in enumerate(parts) if part == ("control", self._placeholder)]
        if len(written) != len(names):
            raise RefusedError(
                f"The model's chat template writes {len(written)} images of a conversation that has {len(names)}."
            )
        for place, name in zip(written, names, strict=True):
            parts[place] = ("image", name)
        return parts

    @cached_property
    def has_images(self) -> bool:
        """Whether the template writes images in messages of the user."""
        try:
            return any(kind == "image" for kind, _ in self._parts([_message("user", f"Look: {mark(_NAME)}")]))
        except RefusedError:
            return False

    def _called(self, calls: Sequence[Call]) -> list[Part]:
        return self._through_stop([_QUESTION, said("", calls)])

    def _through_stop(self, messages: Sequence[Message]) -> list[Part]:
        """Renders messages up to the last control token, which ends the turn of the assistant."""
        parts = self._rendering.parts(messages)
        ends = [place for place, (kind, _) in enumerate(parts) if kind == "control"]
        if len(ends) <= len([kind for kind, _ in self._opened if kind == "control"]):
            raise RefusedError("The model's chat template ends a turn of the assistant with no control token.")
        return parts[: ends[-1] + 1]

    @cached_property
    def _call_turn(self) -> list[Part]:
        """The parts of a call, as the model writes it."""
        called = self._called([_CALL])
        turn = after(called, self._opened)
        return called[len(self._opened) :] if turn is None else turn

    @cached_property
    def _writable(self) -> frozenset[str]:
        """Control tokens that the assistant may write within its turn: those that the template writes there, and those
        that it uses nowhere else."""
        turns = [after(self._plain, self._opened) or [], self._call_turn if self.has_results else []]
        others = [self._opened, self.user("Text", True)]
        others += [self.tool_results(["Text"], [_CALL], True)] if self.has_results else []
        own = _controls(_opening_after(self._opened, str(_QUESTION["content"]))).union(*map(_controls, turns))
        free = set(self._rendering.control) - set().union(*map(_controls, others))
        return frozenset((own | free) - set(self.stops))

    def _functions(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        return [tool.function for tool in tools] if self.has_tools else []

    def _shows(self, text: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            parts = self._rendering.parts(messages, [tool.function for tool in tools], opening=True)
        except RefusedError:
            return False
        return any(text in part for _, part in parts)

    def _has_results(self) -> bool:
        messages = [_QUESTION, said("", [_CALL]), answered("Found", _CALL)]
        try:
            left = self._added(self._called([_CALL]), messages, _ARGUMENT, ended=True)
        except RefusedError:
            return False
        return any("Found" in text for _, text in left)


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _in_pieces(message: Message) -> Message:
    """A message with images gets a list of texts and images as its content. Messages of the assistant never have
    images."""
    text = str(message["content"])
    if message["role"] == "assistant" or not names_in(text):
        return message
    content = [
        {"type": "image"}
        if kind == "image" and is_stored(value)
        else {"type": "text", "text": words(value) if kind == "image" else value}
        for kind, value in pieces(text)
    ]
    return {**message, "content": content}


def said(text: str, calls: Sequence[Call] = ()) -> Message:
    listed = [
        {"type": "function", "id": _id(number), "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})}


def answered(text: str, call: Call, number: int = 0) -> Message:
    """A message of a tool; `number` is the place of its call within the turn."""
    return {"role": "tool", "name": call.name, "tool_call_id": _id(number), "content": text}


def _id(number: int) -> str:
    """An id of nine characters, as templates of Mistral require."""
    return f"{number:09d}"


def _without_tool_role(messages: Sequence[Message]) -> list[Message]:
    """Turns results of tools into messages of the user and joins neighboring ones."""
    made: list[Message] = []
    for message in messages:
        if message["role"] != "tool":
            made.append({name: value for name, value in message.items() if name != "tool_calls"})
            continue
        text = f"{_WRAP[0]}{message['content']}{_WRAP[1]}"
        if made and made[-1].get("results"):
            made[-1] = {**made[-1], "content": f"{made[-1]['content']}\n{text}"}
        else:
            made.append({"role": "user", "content": text, "results": True})
    return made


def _controls(parts: Sequence[Part]) -> set[str]:
    return {text for kind, text in parts if kind == "control"}


def _until(parts: Sequence[Part], text: str, *, begins: bool = False) -> list[Part]:
    """The opening of the message with this text. `begins`: it is the first message. Otherwise text before its first
    control token belongs to the previous message."""
    place = next(place for place, (kind, part) in enumerate(parts) if kind == "text" and text in part)
    opening = [*parts[:place], ("text", parts[place][1].partition(text)[0])]
    if not begins and len(opening) > 1 and opening[0][0] == "text":
        opening = opening[1:]
    return merged(opening) or [("text", "")]


def _from(parts: Sequence[Part], text: str) -> list[Part]:
    """The parts after the text, from the next control token on."""
    place = next((place for place, (kind, part) in enumerate(parts) if kind == "text" and text in part), len(parts))
    return list(parts[place + 1 :])


def _opening_after(parts: Sequence[Part], text: str) -> list[Part]:
    """The opening of the assistant's turn after the message with this text."""
    tail = _from(parts, text)
    # The first control token ends that message; if it is the only one, it also opens the answer.
    more = tail[1:]
    while more and more[0][0] == "text":
        more = more[1:]
    return more or tail
