"""What a process holds, before and after its episodes: threads, files, child processes.

Invariants:
- What begins in the code of a user is remembered with its line, by the events that Python audits.
- What agentrl needs for itself is not counted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from typing import Any, NamedTuple

import psutil

from agentrl.environments import user_places
from agentrl.environments.user_places import Place

_EVENTS = {
    "open": "leaks-files",
    "socket.__new__": "leaks-files",
    "subprocess.Popen": "leaks-processes",
    "os.fork": "leaks-processes",
    "os.posix_spawn": "leaks-processes",
    "_thread.start_new_thread": "leaks-threads",
}
WORDS = {"leaks-files": "files open", "leaks-processes": "child processes", "leaks-threads": "threads"}
"""What was left behind, in words, by the name of the finding."""


class Begun:
    """The lines at which the code of users began things. A process has only one instance, because an audit hook cannot
    be removed."""

    def __init__(self) -> None:
        self._places: dict[str, Counter[Place]] = {name: Counter() for name in WORDS}
        sys.addaudithook(self._note)
        self._note_threads()

    def _note_threads(self) -> None:
        """Notes the start of threads, which Python audits only from 3.12 on."""
        start = threading.Thread.start

        def noted(thread: threading.Thread) -> None:
            self._note("_thread.start_new_thread", ())
            start(thread)

        threading.Thread.start = noted  # type: ignore[method-assign, assignment]

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (name := _EVENTS.get(event)) is not None:
            place = user_places.of_frame(sys._getframe(1))
            if place is not None:
                self._places[name][place] += 1

    def clear(self) -> None:
        for places in self._places.values():
            places.clear()

    def most(self, name: str) -> Place | None:
        """Where most of them began."""
        found = self._places[name].most_common(1)
        return found[0][0] if found else None


class Held(NamedTuple):
    """What this process holds. `tools` is what its tool servers hold."""

    threads: int
    files: int
    processes: int
    tools: dict[str, int]

    def growth(self, before: Held) -> dict[str, int]:
        """By the name of the finding."""
        return {
            "leaks-threads": self.threads - before.threads,
            "leaks-files": self.files - before.files,
            "leaks-processes": self.processes - before.processes,
        }


def held(*, own_children: frozenset[int]) -> Held:
    """`own_children` are those that existed before any code of a user ran: the tool servers."""
    me = psutil.Process()
    children = me.children()
    tools: Counter[str] = Counter()
    for child in children:
        if child.pid in own_children:
            for each in [child, *_below(child)]:
                tools["leaks-files"] += _number(each.num_fds)
                tools["leaks-threads"] += _number(each.num_threads)
            tools["leaks-processes"] += len(_below(child))
    return Held(
        threads=threading.active_count(),
        files=_open_files(),
        processes=sum(child.pid not in own_children for child in children),
        tools=dict(tools),
    )


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _number(read: Any) -> int:
    try:
        return int(read())
    except psutil.Error:
        return 0


def _open_files() -> int:
    """Files, pipes and listening sockets; not the connections of agentrl's own pools, which come and go."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        count += not target.startswith("socket:")
    return count + _strange_sockets()


def _strange_sockets() -> int:
    """Connections whose other end is not in this process, and sockets without a connection."""
    found = psutil.Process().net_connections("all")
    here = {each.laddr for each in found if each.laddr}
    return sum(not (each.raddr and each.raddr in here) and each.status != "LISTEN" for each in found)
