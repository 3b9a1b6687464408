"""Starts one of the servers: `python -m agentrl.toolservers calculator`, or this file by its path.

By its path it also runs in a virtual environment that does not have agentrl. It also starts the programs of
environments that have a Python of their own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

SERVERS = {
    "functions": "toolservers.functions",
    "python": "toolservers.python_cells",
    "files": "toolservers.workspace_files",
    "calculator": "toolservers.calculator",
    "search": "toolservers.corpus_search",
    "shell": "toolservers.shell",
    "describe": "environments.__main__",
    "play": "adapters.programs.main",
}


def _make_importable() -> None:
    """Make `agentrl` importable even if it is not installed. Modules that need its dependencies cannot be used then."""
    here = Path(__file__).parent
    if sys.path and Path(sys.path[0] or ".").resolve() == here.resolve():
        del sys.path[0]  # A file here must not hide a module of the same name.
    if find_spec("agentrl") is not None:
        return
    root = here.parent
    spec = spec_from_file_location("agentrl", root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["agentrl"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in SERVERS:
        sys.exit(f"usage: python -m agentrl.toolservers {{{','.join(SERVERS)}}} ...")
    from importlib import import_module

    import_module(f"agentrl.{SERVERS[arguments[0]]}").main(arguments[1:])


if __name__ == "__main__":
    if not __package__:
        _make_importable()
    main(sys.argv[1:])
