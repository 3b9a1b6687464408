"""A tool server that reads and edits text files in a workspace.

Each session has a workspace of its own. It begins as a copy of a directory, or empty, and ends with the process.

Invariants:
- Nothing outside of the workspace can be reached: each part of a path is opened relative to the part before it, and
  links are never followed, so even a link that is made during the call cannot lead out.
- Sizes are bounded: of a file, of a result, and of the whole workspace.
- A file is replaced as a whole: a failed write changes nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.user_names import ToolError

MOST_FILE_BYTES = 1 << 20
MOST_WORKSPACE_BYTES = 64 << 20
MOST_FILES = 5_000
MOST_READ_CHARS = 12_000
"""The most characters of one result. It is below the default limit of a toolbox, so that the advice at the end is not
cut."""
MOST_LISTED = 500
MOST_FOUND = 100
_MOST_LINE_CHARS = 300
_MOST_PARTS = 32
_LINK = "is a link; links are not followed"


class Workspace:
    """The files below one directory, by relative paths."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def read(self, path: str) -> str:
        with self._parent(path) as (parent, name):
            descriptor = self._open(name, parent, path)
            with os.fdopen(descriptor, "rb") as file:
                info = os.fstat(descriptor)
                if not stat.S_ISREG(info.st_mode):
                    raise ToolError(f"{path} is {'a directory' if stat.S_ISDIR(info.st_mode) else 'no file'}")
                if info.st_size > MOST_FILE_BYTES:
                    raise ToolError(f"{path} has {info.st_size} bytes; at most {MOST_FILE_BYTES} are read")
                content = file.read(MOST_FILE_BYTES)
        if b"\0" in content:
            raise ToolError(f"{path} is not a text file")
        return content.decode("utf-8", "replace")

    def write(self, path: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        if len(content) > MOST_FILE_BYTES:
            raise ToolError(f"{path} would have {len(content)} bytes; at most {MOST_FILE_BYTES} are written")
        used, files = self._size()
        if used + len(content) > MOST_WORKSPACE_BYTES or files >= MOST_FILES:
            raise ToolError(f"the workspace is full: {files} files with {used} bytes")
        with self._parent(path, make=True) as (parent, name):
            self._refuse_if_no_file(name, parent, path)
            draft = f".{name[:200]}.new"
            try:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=parent)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as failed:
                raise ToolError(f"{path} cannot be written: {failed.strerror}") from None

    def walk(self, path: str = ".") -> Iterator[tuple[str, os.stat_result]]:
        """All files and directories below a directory, with their paths from the workspace; links are left out."""
        with self._directory(_parts(path, may_be_root=True)) as top:
            yield from self._below(top, "/".join(_parts(path, may_be_root=True)))

    # ---- paths ----

    def _below(self, directory: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
        for name in sorted(os.listdir(directory)):
            below = f"{path}/{name}" if path else name
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(info.st_mode):
                yield below, info
            elif stat.S_ISDIR(info.st_mode):
                yield f"{below}/", info
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    yield from self._below(inner, below)
                finally:
                    os.close(inner)

    def _size(self) -> tuple[int, int]:
        files = [info.st_size for _, info in self.walk()]
        return sum(files), len(files)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open directory of a path, and the name in it."""
        *above, name = _parts(path)
        with self._directory(above, make=make) as directory:
            yield directory, name

    @contextmanager
    def _directory(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        here = os.dup(self._root)
        try:
            for depth, part in enumerate(parts, start=1):
                if make:
                    try:
                        os.mkdir(part, dir_fd=here)
                    except FileExistsError:
                        pass
                    except OSError as failed:
                        raise ToolError(f"{part} cannot be made: {failed.strerror}") from None
                inner = self._open(part, here, "/".join(parts[:depth]), os.O_DIRECTORY)
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)

    @staticmethod
    def _open(name: str, directory: int, path: str, flags: int = 0) -> int:
        try:
            # Without O_NONBLOCK, a named pipe would block the call.
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=directory)
        except FileNotFoundError:
            raise ToolError(f"there is no {path}") from None
        except OSError as failed:
            try:
                is_link = stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
            except OSError:
                is_link = False
            raise ToolError(f"{path} {_LINK if is_link else f'cannot be opened: {failed.strerror}'}") from None

    @staticmethod
    def _refuse_if_no_file(name: str, directory: int, path: str) -> None:
        try:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        except OSError as failed:
            raise ToolError(f"{path} cannot be written: {failed.strerror}") from None
        if not stat.S_ISREG(mode):
            raise ToolError(f"{path} {_LINK if stat.S_ISLNK(mode) else 'is a directory or no file'}")


def _parts(path: str, *, may_be_root: bool = False) -> list[str]:
    """The names in a path. Raises ToolError if it leads out of the workspace."""
    if "\0" in path:
        raise ToolError("a path has no NUL")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise ToolError(f"{path} is outside of the workspace; paths are relative and have no ..")
    if len(parts) > _MOST_PARTS:
        raise ToolError(f"a path has at most {_MOST_PARTS} parts")
    if any(len(os.fsencode(part.encode("utf-8", "replace").decode())) > 255 for part in parts):
        raise ToolError("a name has at most 255 bytes")
    if not parts and not may_be_root:
        raise ToolError(f"{path or 'the path'} is the workspace itself; name a file in it")
    return [part.encode("utf-8", "replace").decode() for part in parts]


class FileTools:
    """The tools of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._files = workspace

    def read_file(self, path: str, start_line: int = 1) -> str:
        lines = self._files.read(path).splitlines(keepends=True)
        if start_line < 1 or (start_line > len(lines) and start_line > 1):
            raise ToolError(f"{path} has {len(lines)} lines")
        text, at = "", start_line - 1
        while at < len(lines) and len(text) + len(lines[at]) <= MOST_READ_CHARS:
            text += lines[at]
            at += 1
        if at == len(lines):
            return text
        if not text:
            return f"{lines[at][:MOST_READ_CHARS]}\n[line {at + 1} has {len(lines[at])} characters]"
        return f"{text}[{len(lines) - at} more lines; go on with start_line {at + 1}]"

    def write_file(self, path: str, text: str) -> str:
        self._files.write(path, text)
        return f"{path} has {len(text)} characters now"

    def replace_in_file(self, path: str, old: str, new: str, every: bool = False) -> str:
        text = self._files.read(path)
        count = text.count(old) if old else 0
        if not count:
            raise ToolError(f"{path} does not contain this text")
        if count > 1 and not every:
            raise ToolError(f"{path} contains this text {count} times; give more of the lines around it, or set every")
        self._files.write(path, text.replace(old, new))
        return f"{path}: {count} replaced"

    def list_files(self, path: str = ".", pattern: str = "*") -> str:
        found: list[str] = []
        for name, info in self._files.walk(path):
            if not fnmatch(name.rstrip("/").rpartition("/")[2], pattern):
                continue
            if len(found) == MOST_LISTED:
                found.append(f"[more than {MOST_LISTED}; choose a directory or a pattern]")
                break
            found.append(name if name.endswith("/") else f"{name} ({info.st_size} bytes)")
        return "\n".join(found) or "[nothing]"

    def search_files(self, text: str, path: str = ".", pattern: str = "*") -> str:
        if not text:
            raise ToolError("text must not be empty")
        found: list[str] = []
        for name, info in self._files.walk(path):
            if name.endswith("/") or info.st_size > MOST_FILE_BYTES or not fnmatch(name.rpartition("/")[2], pattern):
                continue
            try:
                lines = self._files.read(name).splitlines()
            except ToolError:
                continue
            for number, line in enumerate(lines, start=1):
                if text in line:
                    if len(found) == MOST_FOUND:
                        return "\n".join([*found, f"[more than {MOST_FOUND}]"])
                    found.append(f"{name}:{number}: {line.strip()[:_MOST_LINE_CHARS]}")
        return "\n".join(found) or "[nothing]"

    def tools(self) -> list[Tool]:
        turn = threading.Lock()
        path = {"path": ("string", "Relative to the workspace.")}
        place = {"path?": ("string", "A directory; the whole workspace by default.")}
        pattern = {"pattern?": ("string", "Of file names, such as *.py.")}
        return [
            _tool(
                turn,
                self.read_file,
                "A text file of the workspace, from a line on.",
                {**path, "start_line?": ("integer", "The first line; 1 by default.")},
            ),
            _tool(
                turn,
                self.write_file,
                "Write a text file; its directories are made, and an older one is replaced.",
                {**path, "text": ("string", "The whole content.")},
            ),
            _tool(
                turn,
                self.replace_in_file,
                "Replace a text in a file. It must occur once, unless every is true.",
                {
                    **path,
                    "old": ("string", "The text that is there."),
                    "new": ("string", "The text for it."),
                    "every?": ("boolean", "Replace all of them."),
                },
            ),
            _tool(turn, self.list_files, "The files and directories of the workspace.", {**place, **pattern}),
            _tool(
                turn,
                self.search_files,
                "The lines of files that contain a text.",
                {"text": ("string", "As it is written; no pattern."), **place, **pattern},
            ),
        ]


_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


def _tool(
    turn: threading.Lock, function: Callable[..., str], description: str, parameters: dict[str, tuple[str, str]]
) -> Tool:
    """Makes a tool from a method. Names with a question mark are optional. Calls take turns."""
    types = {name.rstrip("?"): kind for name, (kind, _) in parameters.items()}
    required = [name for name in parameters if not name.endswith("?")]

    def run(arguments: dict[str, Any], call: Call) -> str:
        for name, value in arguments.items():
            if name not in types:
                raise ToolError(f"there is no {name!r}; known are: {', '.join(types)}")
            if not isinstance(value, _TYPES[types[name]]) or (isinstance(value, bool) and types[name] == "integer"):
                raise ToolError(f"{name} must be of the type {types[name]}")
        if missing := [name for name in required if name not in arguments]:
            raise ToolError(f"{', '.join(missing)} is missing")
        with turn:
            return function(**arguments)

    properties = {name.rstrip("?"): {"type": kind, "description": text} for name, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(function.__name__, description, schema, run)


def copied(source: str) -> str:
    """A new directory with the files of another; links and special files are left out. Raises ToolError."""
    root = tempfile.mkdtemp(prefix="workspace-")
    if not source:
        return root
    files = size = 0
    for name, info in Workspace(source).walk():
        target = os.path.join(root, name)
        if name.endswith("/"):
            os.mkdir(target)
            continue
        files, size = files + 1, size + info.st_size
        if files > MOST_FILES or size > MOST_WORKSPACE_BYTES:
            shutil.rmtree(root)
            raise ToolError(f"{source} has more than {MOST_FILES} files or {MOST_WORKSPACE_BYTES} bytes")
        shutil.copyfile(os.path.join(source, name), target)
    return root


def main(arguments: list[str]) -> None:
    try:
        root = copied(arguments[0] if arguments else "")
    except (ToolError, OSError) as failed:
        raise SystemExit(f"the workspace cannot be made: {failed}") from None
    tools = FileTools(Workspace(root)).tools()
    Server("agentrl-files", "1", tools, at_end=lambda: shutil.rmtree(root, ignore_errors=True)).serve()
