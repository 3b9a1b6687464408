"""One record as a web page in one file, for a person who has no access to the run.

Invariants:
- The page needs nothing from outside, and its content security policy permits no script and no request.
- Text of the model, of tools and of the dataset is displayed and never becomes markup.
- The page has each image once; where a text names it again, there is a link.
- Text that is not `Markup` is escaped when it is put into an element or an attribute.
- Control characters and invisible characters are removed from text of a run before that.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from importlib import resources
from typing import Any, TypeAlias

from agentrl.formatting import lineage_text, record_text, record_timeline, tool_call_text
from agentrl.formatting.amounts import counted, duration, utc
from agentrl.formatting.safe_text import sanitise_lines
from agentrl.protocol.data_commands import RecordStory
from agentrl.tokens import image_marks


class Markup(str):
    """HTML that this program wrote."""

    __slots__ = ()


Content: TypeAlias = "str | int | float | Iterable[Content] | None"
_VOID = ("img", "meta")


def element(name: str, /, *inside: Content, **attributes: object) -> Markup:
    """`element("p", text, class_="note")`. Attributes that are None or False are left out."""
    given = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Content) -> Markup:
    """All parts, one after the other; a part that is None is left out."""
    match parts:
        case None:
            return Markup("")
        case Markup():
            return parts
        case str() | int() | float():
            return escaped(str(parts))
    return Markup("".join(joined(part) for part in parts))


def escaped(text: str) -> Markup:
    """Text of any number of lines, escaped for display."""
    return Markup(html.escape(sanitise_lines(text), quote=True))


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


Row = Mapping[str, Any]
SHORT = 400
"""A tool's result of at most this many characters is shown without a click."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}


def image_names(story: RecordStory) -> list[str]:
    """The stored images that the page shows, each once, in the order of the page."""
    texts = [str(story.task.get("query", "")), str(story.task.get("answer", ""))]
    for turn in story.turns:
        texts += [message["text"] for message in turn.get("from_loop", ())]
        texts += [turn["text"], *(tool["result"] for tool in turn["tool_calls"])]
    return list(dict.fromkeys(filter(image_marks.is_stored, image_marks.names_in(*texts))))


def page(
    story: RecordStory, images: Mapping[str, bytes] | None = None, others: Sequence[Row] = (), *, run: str = ""
) -> str:
    """The page of a record. `story` has all its turns. `images` has them by name; missing images are named in words.
    `others` are calls of other models that the record caused."""
    return _Page(story, images or {}, others, run).whole()


class _Page:
    def __init__(self, story: RecordStory, images: Mapping[str, bytes], others: Sequence[Row], run: str) -> None:
        self.story, self.images, self.others, self.run = story, images, others, run
        self._shown: set[str] = set()

    def whole(self) -> str:
        id = self.story.record["id"]
        style = (resources.files("agentrl.formatting") / "record_page.css").read_text()
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", id),
            element("style", Markup(style)),
        )
        body = element("body", self._head(), self._score(), self._times(), self._task(), self._turns(), self._rest())
        return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"

    # ---- the record as a whole ----

    def _head(self) -> Content:
        record, training = self.story.record, self.story.training
        facts: dict[str, Content] = {
            "score": _number(record.get("score")),
            "advantage": _number(training.get("advantage")),
            "turns": record.get("turns"),
            "tokens": record.get("generated_tokens"),
            "took": duration(record["duration_s"]) if record.get("duration_s") else None,
            "weights": _weights(record),
            "begun": utc(record["started_at"].timestamp()) if record.get("started_at") else None,
            "environment": record.get("environment"),
            "run": self.run or None,
        }
        shown = [
            element("div", element("dt", name), element("dd", value))
            for name, value in facts.items()
            if value is not None
        ]
        ended = f"It is {record['status']}: {self.story.ending['sentence']}."
        policy = self.story.ending.get("class") in ("", "policy")
        decided = record_text.decisions({**record, "score_parts": {}})  # The parts of the score have a table.
        lines = [*decided, *lineage_text.lineage(record), *_trained(training)]
        return [
            element("h1", record["id"]),
            element("p", ended, class_="soft" if policy else "bad"),
            element("dl", shown, class_="facts"),
            [element("div", line, class_="soft") for line in lines],
        ]

    def _score(self) -> Content:
        parts = self.story.record.get("score_parts") or {}
        rewards = self.story.record.get("turn_rewards") or []
        if not parts and not rewards:
            return None
        rows = [*parts.items(), *((f"turn {number}", value) for number, value in enumerate(rewards))]
        shown = [
            element("tr", element("td", name), element("td", _number(value), class_="number")) for name, value in rows
        ]
        return [element("h2", "Score by parts"), element("table", shown)]

    def _times(self) -> Content:
        found = record_timeline.spans(self.story, self.others)
        if not found:
            return None
        begin, end = min(span.begin for span in found), max(span.end for span in found)
        whole = max(end - begin, timedelta(milliseconds=1))
        tracks: dict[str, list[Markup]] = {}
        for span in found:
            took = (span.end - span.begin).total_seconds()
            place = f"left:{(span.begin - begin) / whole:.3%};width:{(span.end - span.begin) / whole:.3%}"
            title = f"{span.name}: {took:.3f} s"
            tracks.setdefault(span.track, []).append(element("i", class_=span.kind, style=place, title=title))
        rows = [[element("span", name), element("div", bars, class_="track")] for name, bars in tracks.items()]
        return [
            element("h2", f"Time: {whole.total_seconds():.2f} s"),
            element("div", rows, class_="tracks"),
        ]

    def _task(self) -> Content:
        task = self.story.task
        answer = task.get("answer")
        return [
            element("h2", "Task"),
            self._text(str(task.get("query", ""))),
            [element("div", "The right answer", class_="soft"), self._text(str(answer))] if answer else None,
        ]

    # ---- turns ----

    def _turns(self) -> Content:
        return [element("h2", "Turns"), [self._turn(turn) for turn in self.story.turns]]

    def _turn(self, turn: Row) -> Content:
        call = turn["call"] or {}
        facts = [
            f"in {call['branch']}" if call.get("branch") else "",
            ", ".join(f"v{version} {counted(tokens, 'tokens')}" for version, tokens in call.get("versions", ())),
            f"at {call['engine']}" if call.get("engine") else "",
            f"{call['seconds']:.2f} s" if call.get("seconds") else "",
            str(turn.get("reason") or ""),
        ]
        return element(
            "article",
            element("div", element("strong", f"Turn {turn['index']} "), _listed(facts, class_="soft")),
            [
                [
                    element("div", f"from the agent loop ({message['role'] or 'no role'})", class_="soft"),
                    self._text(text),
                ]
                for message in turn.get("from_loop", ())
                if (text := message["text"])
            ],
            self._text(turn["text"]),
            [
                element("div", f"cannot be read as a call: {parsed['error']}", class_="bad")
                for parsed in turn["parsed"]
                if parsed["error"]
            ],
            [self._tool(tool) for tool in turn["tool_calls"]],
        )

    def _tool(self, tool: Row) -> Content:
        took = f"{tool['latency_s']:.2f} s" if tool.get("latency_s") else ""
        ok = tool.get("status") == "ok"
        result = str(tool.get("result") or "")
        summary = element(
            "summary",
            element("code", tool_call_text.invocation(tool)),
            " ",
            _listed([tool_call_text.ending(tool), took], class_="good" if ok else "bad"),
        )
        return element("details", summary, self._text(result), open=not ok or len(result) <= SHORT)

    # ---- the rest ----

    def _rest(self) -> Content:
        story = self.story
        others = [attempt for attempt in story.attempts if attempt["id"] != story.record["id"]]
        alone = [f"{call['id']} is {call['status']} {call.get('error') or ''}" for call in story.under_way]
        ended = [f"{one['id']}: {one['outcome'] or one['status']} {one['error'] or ''}" for one in others]
        asked = [
            f"{call['purpose'] or call['model']}: {call['outcome']}, {call['latency_s']:.2f} s {call['error']}"
            for call in self.others
        ]
        return [
            [element("h2", "Judges and other models"), [element("div", line) for line in asked]] if asked else None,
            [element("h2", "Calls outside of turns"), [element("div", line) for line in alone]] if alone else None,
            [element("h2", "Other attempts at this seat"), [element("div", line) for line in ended]] if ended else None,
            element("p", f"Written by agentrl. Trace {story.trace or 'unknown'}.", class_="soft"),
        ]

    def _text(self, text: str) -> Content:
        return list(self._pieces(text)) if text else None

    def _pieces(self, text: str) -> Iterator[Markup]:
        for piece in image_marks.pieces(text):
            if piece.kind == "text":
                yield element("pre", piece.value) if piece.value.strip() else Markup("")
            elif piece.value in self._shown:
                yield element("p", element("a", image_marks.words(piece.value), href=f"#image-{piece.value}"))
            elif (kind := _kind(data := self.images.get(piece.value, b""))) is not None:
                self._shown.add(piece.value)
                source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
                caption = element("figcaption", f"{kind}, {piece.value[:12]}")
                picture = element("img", src=source, alt=image_marks.words(piece.value))
                yield element("figure", picture, caption, id=f"image-{piece.value}")
            else:
                yield element("pre", image_marks.words(piece.value))


def _kind(data: bytes) -> str | None:
    """The format of an image by its first bytes, because a declared format could be wrong."""
    return next((kind for begin, kind in _KINDS.items() if data.startswith(begin)), None)


def _listed(parts: Sequence[str], **attributes: object) -> Markup:
    return element("span", " · ".join(part for part in parts if part), **attributes)


def _number(value: Any) -> str | None:
    return None if value is None else f"{value:.4g}"


def _weights(record: Row) -> str | None:
    oldest, newest = record.get("oldest_version"), record.get("newest_version")
    if oldest is None:
        return None
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


def _trained(training: Row) -> list[str]:
    lines = []
    for step in training.get("steps", ()):
        base = f" began with version {step['base_version']}" if step.get("base_version") is not None else ""
        age = f"; staleness of this record {step['staleness']}" if step.get("staleness") is not None else ""
        lines.append(f"step {step['id']} ({step['status']}){base}{age}")
    return lines


def frame(page: str, *, height_px: int = 640) -> str:
    """A page in a frame for a notebook. Nothing in the frame can act on the notebook."""
    return element(
        "iframe",
        srcdoc=page,
        sandbox="",
        style=f"width:100%;height:{height_px}px;border:1px solid #8884;border-radius:6px",
    )
