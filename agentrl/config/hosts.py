"""Defines the hosts of a run in the configuration: their names and labels.

Invariants:
- A word in `hosts` of a group means one host or one label, never both.
- Without declared hosts, every word is the name of a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.config.field_types import Section, Words
from agentrl.config.this_host import HOST_NAME


class Host(Section):
    """A host of the run."""

    labels: Words = ()
    """Words for what the host has, such as `gpu`. A group's `hosts` names hosts or labels."""


def names_of(words: Iterable[str], hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """The names of the hosts that the words mean, each once."""
    found: dict[str, None] = {}
    for word in words:
        labelled = [name for name, host in hosts.items() if word in host.labels]
        found |= dict.fromkeys(labelled or [word])
    return tuple(found)


def known_words(hosts: Mapping[str, Host]) -> tuple[str, ...]:
    """All names and labels."""
    return tuple(dict.fromkeys([*hosts, *(label for host in hosts.values() for label in host.labels)]))


def problem_of(name: str, hosts: Mapping[str, Host]) -> tuple[str, str]:
    """Return the key below the host and the message; empty texts if it is right."""
    if not HOST_NAME.fullmatch(name):
        return "", "is no name of a host: use at most 64 letters, digits, dots and dashes"
    for label in hosts[name].labels:
        if not HOST_NAME.fullmatch(label):
            return "labels", f"has {label!r}, which is no label: use at most 64 letters, digits, dots and dashes"
        if label in hosts:
            return "labels", f"has {label!r}, which is the name of a host; take another word"
    return "", ""
