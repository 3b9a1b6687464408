"""Imports the file of a user, alone or as a part of its package.

Invariants:
- A file beside an `__init__.py` is imported under its own name, so that its relative imports work.
- Modules beside a file are found.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load(path: Path, name: str, *, first: bool = False) -> ModuleType:
    """Import the file and return its module; `name` is the name of the module if it belongs to no package. `first`:
    modules beside the file hide others of the same name. Raises what the file raises."""
    directory, own_name = _place(path)
    if str(directory) not in sys.path:
        sys.path.insert(0 if first else len(sys.path), str(directory))
    if own_name:
        return importlib.import_module(own_name)
    spec = spec_from_file_location(name, path)
    assert spec is not None, "a .py file has one"
    assert spec.loader is not None, "a .py file has one"
    # Dataclasses and pickles look up their module by its name.
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _place(path: Path) -> tuple[Path, str]:
    """The directory to import from, and the name of the module in its package; the name is empty for a single file."""
    directory, parts = path.parent, [path.stem]
    while (directory / "__init__.py").is_file() and directory.name.isidentifier():
        parts.insert(0, directory.name)
        directory = directory.parent
    if parts[-1] == "__init__":
        parts.pop()
    return (path.parent, "") if directory == path.parent else (directory, ".".join(parts))
