"""A run file may extend another one: values, lines, relative paths, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.config.load import Loaded, load_config
from agentrl.errors import ConfigError

BASE = """\
name: base
model: {build: tiny}
environments:
  shop:
    dataset: data/train.jsonl
    tools: shop
tools:
  shop: {command: "{python} -m server", env: {A: "1", B: "2"}}
rollout: {code: [agents.py]}
training: {groups: 4, loss: gspo, warmup: {dataset: shown.jsonl, steps: 3}}
"""


def write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(directory: Path, name: str = "runs/run.yaml", *sets: str, **environ: str) -> Loaded:
    return load_config(directory / name, sets=sets, environ=environ)


def test_values_of_the_file_take_the_place_of_those_that_it_extends(tmp_path: Path) -> None:
    own = """\
extends: ../base.yaml
name: mine
environments:
  shop: {max_turns: 3}
tools:
  shop: {env: {B: "3"}}
rollout: {code: []}
training: {groups: 2}
"""
    write(tmp_path, {"base.yaml": BASE, "runs/run.yaml": own})
    config = load(tmp_path).config
    assert (config.name, config.extends) == ("mine", str(tmp_path / "base.yaml"))
    assert (config.training.groups, config.training.loss, config.training.warmup.steps) == (2, "gspo", 3)
    assert config.environments["shop"].max_turns == 3
    assert config.tools["shop"].env == {"A": "1", "B": "3"}, "tables are joined key by key"
    assert config.rollout.code == (), "lists are replaced as a whole"


def test_relative_paths_are_relative_to_the_file_that_wrote_them(tmp_path: Path) -> None:
    own = (
        "extends: ../base.yaml\nname: mine\nenvironments: {shop: {evaluation: held.jsonl}}\ntools: {shop: {pool: 2}}\n"
    )
    write(tmp_path, {"base.yaml": BASE, "runs/run.yaml": own})
    config = load(tmp_path).config
    shop = config.environments["shop"]
    assert (shop.dataset, shop.evaluation) == (f"{tmp_path}/data/train.jsonl", f"{tmp_path}/runs/held.jsonl")
    assert config.rollout.code == (f"{tmp_path}/agents.py",)
    assert config.training.warmup.dataset == f"{tmp_path}/shown.jsonl"
    assert config.tools["shop"].cwd == str(tmp_path), "a command runs beside the file that names it"
    assert config.dir == f"{tmp_path}/runs/runs/mine", "a default is beside the run file"
    given = load(tmp_path, "runs/run.yaml", "environments.shop.dataset=other.jsonl").config
    assert given.environments["shop"].dataset == f"{tmp_path}/runs/other.jsonl"


def test_every_value_has_the_line_that_wrote_it(tmp_path: Path) -> None:
    middle = "extends: ../base.yaml\nname: middle\ntraining:\n  groups: 3\n"
    own = "extends: middle.yaml\nname: mine\nevaluation: {tasks: 5}\n"
    write(tmp_path, {"base.yaml": BASE, "runs/middle.yaml": middle, "runs/run.yaml": own})
    loaded = load(tmp_path, "runs/run.yaml", AGENTRL_TRAINING__STEPS="7")
    expected = {
        "name": "run.yaml:2",
        "extends": "run.yaml:1",
        "evaluation.tasks": "run.yaml:3",
        "training.groups": "middle.yaml:4",
        "training.loss": "../base.yaml:10",
        "training.steps": "environment AGENTRL_TRAINING__STEPS",
        "training.clip_low": "default",
    }
    assert {key: loaded.sources[key] for key in expected} == expected
    assert loaded.config.training.steps == 7


def test_a_mistake_names_the_file_that_has_it(tmp_path: Path) -> None:
    write(
        tmp_path, {"base.yaml": BASE.replace("groups: 4", "groups: many"), "runs/run.yaml": "extends: ../base.yaml\n"}
    )
    with pytest.raises(ConfigError, match=r"^\.\./base\.yaml:10: training\.groups must be"):
        load(tmp_path)


def test_a_section_of_comments_keeps_what_it_extends(tmp_path: Path) -> None:
    own = "extends: ../base.yaml\nname: mine\ntraining:\n  # groups: 2\n"
    write(tmp_path, {"base.yaml": BASE, "runs/run.yaml": own})
    assert load(tmp_path).config.training.groups == 4


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"run.yaml": "extends: run.yaml\n"}, "run.yaml extends itself: run.yaml extends run.yaml."),
        (
            {"run.yaml": "extends: a.yaml\n", "a.yaml": "extends: b/b.yaml\n", "b/b.yaml": "extends: ../a.yaml\n"},
            "a.yaml extends itself: a.yaml extends b/b.yaml extends a.yaml.",
        ),
        ({"run.yaml": "name: x\nextends: [a.yaml]\n"}, "run.yaml:2: extends must be the path of one run file."),
        ({"run.yaml": "extends:\n"}, "run.yaml:1: extends must be the path of one run file."),
        ({"run.yaml": "extends: no.yaml\n"}, "run.yaml:1: There is no run file {here}/no.yaml."),
        ({"run.yaml": "extends: a.yaml\n", "a.yaml": "a: [\n"}, "a.yaml:1: this is not valid YAML"),
        ({"run.yaml": "extends: .\n"}, "run.yaml:1: The run file {here} cannot be read: Is a directory."),
    ],
)
def test_what_cannot_be_extended_is_refused_with_one_sentence(
    tmp_path: Path, files: Mapping[str, str], sentence: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "run.yaml")
    assert caught.value.message.startswith(sentence.format(here=tmp_path))


def test_extends_stands_in_the_file_alone(tmp_path: Path) -> None:
    write(tmp_path, {"run.yaml": BASE})
    with pytest.raises(ConfigError, match="--set extends: write extends into the run file"):
        load(tmp_path, "run.yaml", "extends=other.yaml")
    with pytest.raises(ConfigError, match="AGENTRL_EXTENDS: write extends into the run file"):
        load(tmp_path, "run.yaml", AGENTRL_EXTENDS="other.yaml")


def test_a_device_is_no_run_file(tmp_path: Path) -> None:
    write(tmp_path, {"run.yaml": "extends: /dev/zero\n"})
    with pytest.raises(ConfigError, match=r"run.yaml:1: /dev/zero is longer than 16 MiB"):
        load(tmp_path, "run.yaml")
