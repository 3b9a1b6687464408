"""Paths as a person wrote them: in a run file, on a command line, in a form of the console.

Invariant: nothing here raises. A form checks each text while it is typed, and the path of an unknown user, one that is
too long, or one below a directory that may not be read is no file.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_of(text: str | os.PathLike[str]) -> Path:
    """With the home directory for `~`; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))


def is_file(text: str | os.PathLike[str]) -> bool:
    # Unlike `Path.is_file`, it has an answer if the system refuses to look.
    return os.path.isfile(path_of(text))
