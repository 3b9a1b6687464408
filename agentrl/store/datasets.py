"""Files of tasks: JSONL, JSON, Parquet, Hugging Face datasets on disk, and datasets of a hub by name.

Invariants: a row is understood or refused with its file and number; the aliases of a field are one table; unknown
fields are kept as `extra`; a file is read in its own order, and the order of an epoch depends only on its number.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.data_plane import problem_of_schema
from agentrl.config.hub_words import is_hub_word
from agentrl.errors import ConfigError
from agentrl.images import sources
from agentrl.images.processing import ImageError
from agentrl.store.documents import ConversationMessage
from agentrl.store.hub_datasets import local_copy
from agentrl.tokens.image_marks import mark, names_in, plain, shown

ALIASES: dict[str, tuple[str, ...]] = {
    "id": ("id", "task_id", "uid", "uuid"),
    "query": (
        *("query", "question", "prompt", "instruction", "problem", "input", "messages"),
        *("q", "Question", "content", "traj_question"),
    ),
    "answer": (
        *("answer", "expected_answer", "ground_truth", "reference_answer", "target", "solution"),
        *("a", "Final answer", "Final Answer", "Final sample answer"),
    ),
    "scorer": ("scorer",),
    "answer_schema": ("answer_schema",),
    "agent_name": ("agent_name", "agent"),
    "split": ("split",),
}
"""The first alias in a row counts; others stay in `extra`."""

IMAGES = "images"
PLACE = "<image>"
"""The place in the query of an image from the column `images`."""
LARGEST_ROW = 4 * 2**20
"""In bytes. A document of the database holds four times as much; anything larger is a file and not a row."""

LOOKED_AT_WHOLE_BYTES = 32 * 2**20
LOOKED_AT_ROWS = 10_000
"""At most this many rows of a large dataset are checked."""

SPLITS = {
    "train": "train",
    "training": "train",
    **dict.fromkeys(("eval", "evaluation", "val", "valid", "validation", "dev", "test"), "eval"),
}


class DatasetError(ConfigError):
    """A dataset cannot be read: which file, which row, and what is wrong with it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    earlier: tuple[ConversationMessage, ...] = ()
    """For a conversation: its instructions, and the messages before the query."""
    answer: str = ""
    id: str = ""
    scorer: str = ""
    """Empty: the scorer of the environment."""
    answer_schema: str = ""
    agent_name: str = ""
    split: str = ""
    """`train` or `eval`; empty if the row does not say."""
    extra: dict[str, Any] = {}
    where: str = ""
    """Path and number, as errors name them, so that a person can find the row to repair."""

    @property
    def file_and_number(self) -> str:
        """The place of a row, for rows of known datasets."""
        return self.where.rpartition("/")[2]


class Leak(msgspec.Struct, frozen=True):
    """A prompt that occurs in two splits."""

    query: str
    train: str
    eval: str

    def lines(self) -> str:
        """The places of both rows, without the prompt."""
        return f"{self.eval} is held out, and {self.train} trains on the same prompt"

    def sentence(self) -> str:
        short = self.query if len(self.query) <= 80 else f"{self.query[:79]}…"
        return f"{self.lines()}: {short!r}"


def read(path: str | Path) -> list[Row]:
    """All rows of a file or directory."""
    return _read(Path(path), None)


def read_without_images(path: str | Path) -> list[Row]:
    """The same for a process that shows no images of rows. Their files may be on the host of the steward alone."""
    return _read(Path(path), None, has_images=False)


def look(path: str | Path) -> tuple[list[Row], bool]:
    """All rows of a small dataset, otherwise the first ones; and whether these are all."""
    place = local_copy(str(path), SPLITS) if is_hub_word(str(path)) else Path(path)
    whole = _bytes_of(place) <= LOOKED_AT_WHOLE_BYTES
    return _read(place, None if whole else LOOKED_AT_ROWS), whole


def split_of(rows: Iterable[Row], split: str, *, default: str) -> list[Row]:
    """The rows of a split; rows without a split are in the default one."""
    return [row for row in rows if (row.split or default) == split]


def leaks(train: Iterable[Row], held_out: Iterable[Row]) -> list[Leak]:
    """Held-out prompts that are also trained on."""
    found = repeated(held_out, train)
    return [Leak(held.query, trained.file_and_number, held.file_and_number) for held, trained in found]


def repeated(rows: Iterable[Row], known: Iterable[Row]) -> list[tuple[Row, Row]]:
    """The rows whose prompt is also in known rows, each with the known row."""
    by_prompt = {_same(row): row for row in known}
    return [(row, by_prompt[_same(row)]) for row in rows if _same(row) in by_prompt]


def order(rows: int, *, shuffle: int, epoch: int) -> list[int]:
    """The order of the rows in an epoch. It uses Python's own random generator, whose sequence never changes."""
    numbers = list(range(rows))
    random.Random(f"{shuffle}/{epoch}").shuffle(numbers)
    return numbers


def digest(rows: Iterable[Row]) -> str:
    """A digest that is equal for the same rows in the same order."""
    hashed = hashlib.blake2b(digest_size=16)
    for row in rows:
        said = [row.id, row.query, row.answer, row.split, row.scorer, row.answer_schema, row.agent_name]
        hashed.update(msgspec.json.encode([*said, row.extra, row.earlier], enc_hook=str, order="sorted"))
    return hashed.hexdigest()


# ---- reading ----


def _read(place: Path, most: int | None, *, has_images: bool = True) -> list[Row]:
    with numbered_rows(place) as found:
        folder = place if place.is_dir() else place.parent
        beside = folder if has_images else None
        rows = [_of_a_size(_row(one, where, split, beside)) for where, split, one in itertools.islice(found, most)]
    if not rows:
        raise DatasetError(f"{place} has no rows.")
    _refuse_repeated_ids(rows)
    return rows


def _bytes_of(place: Path) -> int:
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


_Numbered = Generator[tuple[str, str, Any]]
"""The place of the row, the split that its path implies, and the row."""


@contextlib.contextmanager
def numbered_rows(path: str | Path) -> Iterator[_Numbered]:
    """The raw rows of a file or directory. Its files are closed at the end of the body."""
    place = Path(path)
    if is_hub_word(str(path)):
        place = local_copy(str(path), SPLITS)
    if not place.exists():
        raise DatasetError(f"There is no dataset {place}.")
    with contextlib.closing(_reader(place)(place)) as rows:
        yield rows


def _reader(place: Path) -> Callable[[Path], _Numbered]:
    if place.is_dir():
        return _read_directory
    readers = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet}
    found = readers.get(place.suffix.lower())
    if found is None:
        raise DatasetError(
            f"{place} is of an unknown kind.", hint="Known are .jsonl, .json, .parquet, and datasets saved to disk."
        )
    return found


def _read_jsonl(place: Path) -> _Numbered:
    with place.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{place} line {number}"
                try:
                    yield where, "", json.loads(line)
                except ValueError as broken:
                    raise DatasetError(f"{where} is no JSON: {_reason(broken)}.") from None


def _read_json(place: Path) -> _Numbered:
    try:
        whole = json.loads(place.read_bytes())
    except ValueError as broken:
        raise DatasetError(f"{place} is no JSON: {_reason(broken)}.") from None
    if isinstance(whole, Mapping):
        lists = [value for value in whole.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise DatasetError(f"{place} holds an object with {len(lists)} lists; it should be a list of rows.")
        whole = lists[0]
    if not isinstance(whole, list):
        raise DatasetError(f"{place} holds no list of rows.")
    for number, row in enumerate(whole, start=1):
        yield f"{place} row {number}", "", row


def _read_parquet(place: Path) -> _Numbered:
    parquet = _arrow("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(place) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{place} row {number}", "", row
    except (OSError, ValueError) as broken:  # errors of Arrow are ValueErrors
        raise DatasetError(f"{place} is no Parquet file: {broken}.") from None


def _read_directory(place: Path) -> _Numbered:
    if (place / "dataset_dict.json").is_file():
        for split in _described(place / "dataset_dict.json", "splits"):
            yield from _read_saved(place / str(split), SPLITS.get(str(split), str(split)))
    elif (place / "state.json").is_file():
        yield from _read_saved(place, "")
    elif files := sorted(place.glob("*.parquet")) + sorted(place.glob("*.jsonl")):
        for file in files:
            split = SPLITS.get(file.name.partition(".")[0].partition("-")[0], "")
            with contextlib.closing(_reader(file)(file)) as rows:
                for where, _, row in rows:
                    yield where, split, row
    else:
        raise DatasetError(
            f"{place} is no dataset: it has neither dataset_dict.json nor state.json, nor Parquet or JSONL files."
        )


def _read_saved(place: Path, split: str) -> _Numbered:
    """What `Dataset.save_to_disk` writes: Arrow streams that `state.json` names."""
    ipc = _arrow("pyarrow.ipc")
    number = 0
    for entry in _described(place / "state.json", "_data_files"):
        name = str(entry["filename"])
        try:
            with ipc.open_stream(str(place / name)) as stream:
                for batch in stream:
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{place} row {number}", split, row
        except (OSError, ValueError) as broken:
            raise DatasetError(f"{place / name} is no Arrow file: {broken}.") from None


def _described(file: Path, key: str) -> list[Any]:
    try:
        return list(json.loads(file.read_bytes())[key])
    except (OSError, ValueError, KeyError, TypeError) as broken:
        raise DatasetError(f"{file} does not describe a saved dataset: {_reason(broken)}.") from None


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DatasetError(
            "Reading this dataset needs pyarrow.", hint="Install it with `pip install 'agentrl[train]'`."
        ) from None


# ---- understanding ----


def _row(stored: Any, where: str, split: str, beside: Path | None) -> Row:
    """`beside`: the directory to which paths of images are relative; None if the images are on another host."""
    if not isinstance(stored, Mapping):
        raise DatasetError(f"{where} is no object but {_kind(stored)}.")
    fields = {str(name): value for name, value in stored.items() if value is not None}
    taken = {field: _first(fields, names) for field, names in ALIASES.items()}
    query, earlier = _query(fields, taken["query"], where, beside)
    said = str(fields.get(taken["split"] or "", "")).lower()
    if said and said not in SPLITS:
        raise DatasetError(f"{where} is in the split {said!r}; known are: {', '.join(SPLITS)}.")
    # Messages may contain more than texts, so they are kept whole too; images are stored separately.
    images = bool(names_in(query, *(one.content for one in earlier)))
    used = {name for name in taken.values() if name is not None and (images or name != "messages")}
    used |= {IMAGES} if images else set()
    return Row(
        query=query,
        earlier=earlier,
        answer=_text(fields.get(taken["answer"] or "")),
        id=_text(fields.get(taken["id"] or "")),
        scorer=_name(fields, taken["scorer"], where),
        answer_schema=_schema(fields, taken["answer_schema"], where),
        agent_name=_name(fields, taken["agent_name"], where),
        split=SPLITS.get(said, "") or split,
        extra={name: value for name, value in fields.items() if name not in used},
        where=where,
    )


def _of_a_size(row: Row) -> Row:
    # Images are stored separately, with a limit of their own.
    texts = [shown(row.query), *(shown(one.content) for one in row.earlier)]
    parts = [texts, row.answer, row.extra]
    text = json.dumps(parts, ensure_ascii=False, default=str, skipkeys=True)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        # A lone surrogate (half a character) is replaced instead of refused, because nothing could store or tokenize
        # it.
        return _of_a_size(_of_whole_characters(row))
    if size > LARGEST_ROW:
        raise DatasetError(
            f"{row.where} is too large: {size} bytes, and a row may have {LARGEST_ROW}.",
            hint="Name large things by a path or an id, and let a tool hand them out.",
        )
    return row


def _of_whole_characters(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case msgspec.Struct():
            fields = msgspec.structs.asdict(value)
            return msgspec.structs.replace(value, **_of_whole_characters(fields))
        case Mapping():
            return {_of_whole_characters(key): _of_whole_characters(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(_of_whole_characters, value))
    return value


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in fields), None)


def _query(
    fields: Mapping[str, Any], name: str | None, where: str, beside: Path | None
) -> tuple[str, tuple[ConversationMessage, ...]]:
    if name is None:
        raise DatasetError(f"{where} has no query: one of {', '.join(ALIASES['query'])} is needed.")
    value = fields[name]
    earlier: tuple[ConversationMessage, ...] = ()
    if isinstance(value, list):
        said = _conversation(value, name, where, beside)
        value, earlier = said[-1].content, said[:-1]
    elif isinstance(value, str):
        value = _with_images(plain(value), fields.get(IMAGES), where, beside)
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(f"{where}: {name} must be a text that is not empty, and is {_kind(value)}.")
    return value, earlier


def _with_images(query: str, images: Any, where: str, beside: Path | None) -> str:
    """The query with the images of the column `images` in place of every `<image>`, or before the query if it has
    none."""
    if not isinstance(images, list) or not images:
        return query
    try:
        marks = [mark(sources.source_of(image, beside=beside)) for image in images]
    except ImageError as wrong:
        raise DatasetError(f"{where}: {IMAGES} {wrong.message}.") from None
    first, *others = query.split(PLACE)
    if not others:
        return "".join(marks) + query
    if len(others) != len(marks):
        raise DatasetError(f"{where}: {IMAGES} has {len(marks)} images, and the query {len(others)} times {PLACE}.")
    return first + "".join(found + text for found, text in zip(marks, others, strict=True))


def _conversation(messages: list[Any], name: str, where: str, beside: Path | None) -> tuple[ConversationMessage, ...]:
    """The conversation up to the last message of the user; an answer after it must not be shown to the model."""
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise DatasetError(f"{where}: {name} must be a text or messages with role and content.")
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise DatasetError(f"{where}: {name} has no message of the user.")
    for place, message in enumerate(messages[: last + 1]):
        if message["role"] not in (("system", "user", "assistant") if place == 0 else ("user", "assistant")):
            raise DatasetError(
                f"{where}: {name} may have one message of the system, the first; others are of the user or of the "
                f"assistant, and number {place + 1} is of {message['role']!r}."
            )
        if message.get("tool_calls"):
            raise DatasetError(f"{where}: {name} must be of texts and images, and number {place + 1} calls tools.")
    return tuple(
        ConversationMessage(message["role"], _content(message, f"{where}: number {place + 1} of {name}", beside))
        for place, message in enumerate(messages[: last + 1])
    )


def _content(message: Mapping[str, Any], at: str, beside: Path | None) -> str:
    """The text of a message, with a mark for every image."""
    content = message.get("content")
    try:
        found = sources.text_of(content, beside=beside)
    except ImageError as wrong:
        raise DatasetError(f"{at} {wrong.message}.") from None
    if message["role"] != "user" and names_in(found):
        raise DatasetError(f"{at} shows an image and is of {message['role']!r}; only messages of the user may.")
    return found


def _name(fields: Mapping[str, Any], name: str | None, where: str) -> str:
    value = fields[name] if name is not None else ""
    if not isinstance(value, str):
        raise DatasetError(f"{where}: {name} must be a name, and is {_kind(value)}.")
    return value


def _schema(fields: Mapping[str, Any], name: str | None, where: str) -> str:
    schema = _name(fields, name, where)
    if problem := problem_of_schema(schema):
        raise DatasetError(f"{where}: {name} {problem}.")
    return schema


def _text(value: Any) -> str:
    """A value as text: a number as a person would write it, a nested value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _refuse_repeated_ids(rows: Iterable[Row]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.id and (first := seen.setdefault((row.split, row.id), row.where)) != row.where:
            raise DatasetError(f"{row.where} has the id {row.id!r}, which {first} has already.")


def _same(row: Row) -> tuple[str, ...]:
    """Prompts that differ only in spaces, or in their instructions, are the same."""
    before = (said.content for said in row.earlier if said.role != "system")
    return tuple(" ".join(text.split()) for text in (*before, row.query))


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    kind = names.get(type(value), type(value).__name__)
    return "an empty text" if isinstance(value, str) and not value.strip() else kind


def _reason(broken: Exception) -> str:
    if isinstance(broken, json.JSONDecodeError):
        if broken.msg == "Invalid control character at" and broken.doc[broken.pos] == "\n":
            return f"a text is not closed at character {broken.pos + 1}"
        return f"{broken.msg.removesuffix(' at')} at character {broken.pos + 1}"
    return str(broken)
