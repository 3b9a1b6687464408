"""The toolboxes of `tests/toolbox`."""

from __future__ import annotations

from tests.toolbox.conftest import make as make
