"""docs/run-file.md: every example is accepted, and no section of the configuration is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.config.placeholders import PLACEHOLDERS
from agentrl.config.run import RunConfig
from agentrl.config.show import advice
from agentrl.config.sidecars import Sidecar

PAGE = (Path(__file__).parents[2] / "docs" / "run-file.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_valid_run_file(number: int, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(EXAMPLES[number])
    assert advice(load_config(file, environ={})) == []


def test_page_has_every_section_group_key_and_placeholder() -> None:
    whole = "\n".join(EXAMPLES)
    for key in RunConfig.model_fields:
        assert re.search(rf"^{key}:", whole, re.MULTILINE), key
    for key in Sidecar.model_fields:
        assert re.search(rf"\b{key}:", PAGE) or f"`{key}`" in PAGE, key
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in PAGE
