"""The pages of the run file: every example is accepted, and nothing of the configuration is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from agentrl.config.load import load_config
from agentrl.config.loss_keys import LossKeys, MaskSettings
from agentrl.config.parallel import Parallel
from agentrl.config.placeholders import PLACEHOLDERS
from agentrl.config.run import RunConfig
from agentrl.config.show import advice
from agentrl.config.sidecars import Sidecar
from agentrl.policies.loss_settings import DEFAULTS_BY_NAME

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "run-file.md").read_text()
LOSSES = (DOCS / "losses.md").read_text()
HOSTS = (DOCS / "hosts.md").read_text()
TRAINING = (DOCS / "training.md").read_text()
CONTEXT = (DOCS / "context.md").read_text()
JUDGES = (DOCS / "judges.md").read_text()
MONITORING = (DOCS / "monitoring.md").read_text().replace("```yaml\nrule_files", "```\nrule_files")
PAGES = PAGE + LOSSES + TRAINING + HOSTS + MONITORING + JUDGES + CONTEXT
EXAMPLES = re.findall(
    r"^```yaml\n(.*?)^```$", PAGE + LOSSES + TRAINING + HOSTS + MONITORING + JUDGES, re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_valid_run_file(number: int, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: base\n")
    file = tmp_path / "run.yaml"
    file.write_text(EXAMPLES[number])
    assert advice(load_config(file, environ={})) == []


def test_the_page_of_losses_has_every_form_key_and_term() -> None:
    for name in (*LossKeys.model_fields, *MaskSettings.model_fields, *DEFAULTS_BY_NAME):
        assert re.search(rf"`{name}\b|\b{name}:", LOSSES), name
    for form, defaults in DEFAULTS_BY_NAME.items():
        (row,) = re.findall(rf"^\| `{form}` \|.*$", LOSSES, re.MULTILINE)
        for key, value in defaults.items():
            given = re.search(rf"`{key}: ([^`]+)`", row)
            assert given is not None, (form, key)
            assert yaml.safe_load(given[1]) == value or float(given[1]) == value, (form, key)


def test_the_page_of_training_has_every_kind_of_parallelism() -> None:
    for kind in Parallel.model_fields:
        assert f"`{kind}`" in TRAINING, kind


def test_impossible_ranks_are_refused() -> None:
    run = {
        "name": "spread",
        "model": {"build": "tiny"},
        "environments": {"shop": {"dataset": "rows.jsonl"}},
        "training": {"groups": 3, "parallel": {"shard": 2, "replicate": 2, "context": 2}},
    }
    with pytest.raises(ValidationError, match=r"parallel has 4 ranks .* more than training.groups \(3\)"):
        RunConfig.model_validate(run)
    for training, refused in (
        ({"parallel": {"tensor": 2, "expert": 2}}, "parallel.expert and tensor both divide the experts"),
        ({"gather": "bfloat16"}, "gather is bfloat16, which needs precision: bfloat16"),
    ):
        job = {"name": "shown", "training": {"loss": "sft", "demonstrations": "shown.jsonl", **training}}
        with pytest.raises(ValidationError, match=refused):
            RunConfig.model_validate(job)


def test_page_has_every_section_group_key_and_placeholder() -> None:
    whole = "\n".join(EXAMPLES)
    for key in RunConfig.model_fields:
        assert re.search(rf"^{key}:", whole, re.MULTILINE), key
    for key in Sidecar.model_fields:
        assert re.search(rf"\b{key}:", PAGE) or f"`{key}`" in PAGE, key
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in PAGE
