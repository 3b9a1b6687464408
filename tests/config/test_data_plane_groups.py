"""The data plane in a run file: its groups, what they need, and which changes replace them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.control.commands.data_plane_groups import SETTINGS_VARIABLE
from agentrl.control.commands.group_specs import MONGO_STOP_RANK, specs_of
from agentrl.errors import ConfigError
from agentrl.protocol.specs import GroupSpec, Life, Role

SMALL = """\
name: demo
model: {build: tiny}
environments:
  shop: {dataset: train.jsonl, tools: shop}
tools:
  shop: {command: "{python} -m assets.shop_server", session: keyed}
"""


def config_of(folder: Path, text: str) -> RunConfig:
    file = folder / "run.yaml"
    file.write_text(text)
    return load_config(file, environ={}).config


def groups_of(config: RunConfig) -> dict[str, GroupSpec]:
    return {spec.name: spec for spec in specs_of(config, run_dir="/runs/demo", state_dir="/state/demo")}


def test_six_lines_start_every_role(tmp_path: Path) -> None:
    config = config_of(tmp_path, SMALL)
    groups = groups_of(config)
    assert list(groups) == ["mongo", "steward", "toolbox", "engine", "sampler", "trainer"]
    assert [spec.role for spec in groups.values()] == [Role(name) for name in groups]
    assert config.sizes == dict.fromkeys(groups, 1)
    assert config.environments["shop"].dataset == str(tmp_path / "train.jsonl"), "relative to the run file"
    assert config.tools["shop"].cwd == str(tmp_path), "a command finds what stands beside the run file"
    assert groups["trainer"].life is Life.JOB
    assert all("mongo" in spec.after for name, spec in groups.items() if name != "mongo")
    assert max(spec.stop_rank for name, spec in groups.items() if name != "mongo") < MONGO_STOP_RANK
    assert groups["sampler"].stop_rank < groups["steward"].stop_rank, "what is needed stops later"


def test_reading_changes_the_steward_and_keeps_the_store(tmp_path: Path) -> None:
    config = config_of(tmp_path, SMALL)
    whole = specs_of(config, run_dir="/r", state_dir="/s")
    read = specs_of(config, run_dir="/r", state_dir="/s", reading=True)
    other = {one.name: two.command[3:] for one, two in zip(whole, read, strict=True) if one != two}
    assert other == {"steward": ("--read-only",)}


def test_without_environments_there_is_no_data_plane(tmp_path: Path) -> None:
    config = config_of(tmp_path, "name: bare\nmodel: {build: tiny}\n")
    assert config.sizes == {}


def test_configured_database_server_starts_no_embedded_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, SMALL + "mongo: {url: env:MONGO_URL}\n")
    groups = groups_of(config)
    assert "mongo" not in groups
    assert groups["steward"].after == ()


def test_frozen_run_still_has_a_trainer(tmp_path: Path) -> None:
    assert "trainer" in groups_of(config_of(tmp_path, SMALL + "training: {frozen: true}\n"))


def test_other_models_change_without_a_restart(tmp_path: Path) -> None:
    judged = SMALL + "models: {judge: [{url: 'https://h/v1', model: a}]}\njudges: {right: {model: judge}}\n"
    before, after = config_of(tmp_path, judged), config_of(tmp_path, judged.replace("model: a", "model: b"))
    assert groups_of(before) == groups_of(after)
    keyed = groups_of(config_of(tmp_path, judged.replace("model: a", "model: a, key: 'env:JUDGE_KEY'")))
    assert {name for name, spec in keyed.items() if "JUDGE_KEY" in spec.env} == {"sampler"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("judges: {right: {model: other}}", "judges.right.model names the unknown model 'other'; known are: judge"),
        ("judges: {exact: {model: judge}}", "judges.exact has the name of a scorer that comes along"),
        ("judges: {right: {model: judge, votes: 3}}", "judge answers at temperature 0, so all votes would be the same"),
        ("judges: {right: {model: judge, template: 'Good? VERDICT:'}}", "names neither {answer} nor {transcript}"),
        ("judges: {right: {model: judge, template: '{answer} {key} VERDICT'}}", "template has {key}"),
        ("summaries: {model: browse}", "summaries.model names the unknown model 'browse'"),
        ("models: {judge: []}", "models.judge has no service"),
        ("models: {judge: [{url: 'https://me:pw@h/v1', model: a}]}", "without a user or a key"),
    ],
)
def test_other_models_that_cannot_be_are_refused_with_their_place(tmp_path: Path, more: str, sentence: str) -> None:
    models = "" if more.startswith("models") else "models: {judge: [{url: 'https://h/v1', model: a}]}\n"
    with pytest.raises(ConfigError) as refused:
        config_of(tmp_path, f"{SMALL}{models}{more}\n")
    assert sentence in str(refused.value)


def test_changed_section_replaces_only_the_groups_that_read_it(tmp_path: Path) -> None:
    before = groups_of(config_of(tmp_path, SMALL))
    after = groups_of(config_of(tmp_path, SMALL + "engines: {slots: 8}\n"))
    changed = {name for name in before if before[name].fingerprint() != after[name].fingerprint()}
    assert changed == {"engine"}
    rated = groups_of(config_of(tmp_path, SMALL + "training: {learning_rate: 0.1}\n"))
    assert before["sampler"].fingerprint() == rated["sampler"].fingerprint()
    closed = groups_of(config_of(tmp_path, SMALL + "training: {limits: mask}\n"))
    assert before["sampler"].fingerprint() != closed["sampler"].fingerprint(), "samplers close groups"
    more = groups_of(config_of(tmp_path, SMALL + "rollout: {samplers: 3}\n"))
    assert more["sampler"].count == 3


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (SMALL.replace("build: tiny", "build: tiny, images: {origins: ['https://a.example']}"), {"steward", "sampler"}),
        (SMALL.replace("session: keyed", "session: keyed, timeout_s: 300"), {"steward", "sampler", "toolbox"}),
        (SMALL + "reward_watch: {every_s: 30}\n", {"steward"}),
        (SMALL + "sampling: {context: 16384}\n", {"steward", "sampler", "engine", "trainer"}),
        (SMALL + "rollout: {episode_s: 7200}\n", {"steward", "sampler", "toolbox", "trainer"}),
        (SMALL + "rollout: {max_in_flight: 512}\n", {"steward", "trainer"}),
        (SMALL + "training: {turn_discount: 0.9}\n", {"steward", "sampler"}),
        (SMALL + "training: {learning_rate: 0.1}\n", {"trainer"}),
        # The programs that a toolbox and a sampler start may not read the file.
        (SMALL + "training: {curves: {wandb: {key: 'file:/k'}}}\n", {"trainer", "toolbox", "sampler"}),
        (SMALL + "training: {random: 7}\n", {"sampler", "trainer"}),
        (SMALL.replace("build: tiny", "path: /models/a"), {"trainer"}),
        (SMALL + "evaluation: {engine: embedded}\n", {"engine"}),
    ],
)
def test_a_changed_setting_replaces_the_groups_whose_processes_use_it_and_no_other(
    tmp_path: Path, text: str, reading: set[str]
) -> None:
    before, after = groups_of(config_of(tmp_path, SMALL)), groups_of(config_of(tmp_path, text))
    assert reading == {name for name in before if before[name].fingerprint() != after[name].fingerprint()}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SMALL.replace("model: {build: tiny}\n", ""), "model is missing"),
        (SMALL.replace("tools: shop}", "tools: shp}"), "names the unknown tool server 'shp'; known are: shop"),
        (
            SMALL.replace("tools: shop}", "tools: shop, answer_schema: <answer>}"),
            "environments.shop.answer_schema is '<answer>'; it must be boxed, or a tag's name",
        ),
        (SMALL + "rollout: {max_in_flight: 4}\n", "no group would ever be admitted"),
        (SMALL + "training: {groups: 4, optimizer_steps: 5}\n", "larger than training.groups (4)"),
        (SMALL.replace("build: tiny", "build: tiny, path: x"), "exactly one of path, build"),
        (SMALL + "sampling: {temprature: 2}\n", "did you mean sampling.temperature?"),
        (
            SMALL + "sampling: {top_p: 0.9, min_p: 0.1}\n",
            "sampling must not have min_p, top_p: the trainer recomputes log-probs at a temperature only",
        ),
        (SMALL + "evaluation: {top_p: 0}\n", "evaluation.top_p must be"),
        (SMALL + "evaluation: {repetition_penalty: 3}\n", "evaluation.repetition_penalty must be"),
        (
            SMALL + "evaluation: {repetition_penalty: 1.2, presence_penalty: 1}\n",
            "repetition_penalty must not be combined with frequency_penalty or presence_penalty",
        ),
        (SMALL + "training: {decay: {cap: 9}}\n", "training.decay cannot be followed: The lower bound would reach 0"),
        (SMALL + "training: {bound: 4, hard_bound: 2}\n", "hard bound 2 is smaller than the bound 4"),
        (SMALL + "training: {loss: sft}\n", "is a job of `agentrl train`"),
        (SMALL + "training: {reference_weight: 0.1}\n", "and there is none: set reference: initial"),
        (SMALL + "training: {weight_cap: 2}\n", "count the same difference twice"),
        (SMALL + "training: {dual_clip: 1.1}\n", "dual_clip must be above 1 + clip_high"),
        (SMALL + "training: {aggregation: record-sum, denominator: kept}\n", "Only a mean over tokens"),
    ],
)
def test_contradictions_between_sections_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, text)
    assert sentence in caught.value.message


SGLANG = SMALL + "engines: {kind: sglang, args: [%s]}\n"


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ("", 1),
        ("--device, cpu", 0),
        ("--device=cpu", 0),
        ("--tp-size, '4'", 4),
        ("--tp-size=2, --pp-size=2, --dp-size=2", 8),
        ("--tp-size, '8', --dp-size, '8', --enable-dp-attention", 8),
    ],
)
def test_engine_reserves_the_gpus_of_its_server(tmp_path: Path, args: str, gpus: int) -> None:
    groups = groups_of(config_of(tmp_path, SGLANG % args))
    assert (groups["engine"].resources.gpus, groups["trainer"].resources.gpus) == (gpus, min(1, gpus))


def test_trainer_and_engine_may_share_a_gpu(tmp_path: Path) -> None:
    shares = "engines: {kind: sglang, gpus: 0.5}\ntraining: {gpus: 0.4}\n"
    groups = groups_of(config_of(tmp_path, SMALL + shares))
    assert (groups["engine"].resources.gpus, groups["trainer"].resources.gpus) == (0.5, 0.4)
    assert groups_of(config_of(tmp_path, SMALL))["trainer"].resources.gpus == 0
    embedded = groups_of(config_of(tmp_path, SMALL + shares.replace("sglang", "embedded")))
    assert (embedded["engine"].resources.gpus, embedded["trainer"].resources.gpus) == (0.5, 0.4)
    with pytest.raises(ConfigError, match=r"engines.gpus is 2: an embedded engine computes on one GPU, or on a share"):
        config_of(tmp_path, SMALL + "engines: {gpus: 2}\n")
    ranks = "engines: {kind: sglang}\ntraining: {parallel: {replicate: 2}}\n"
    trainer = groups_of(config_of(tmp_path, SMALL + ranks))["trainer"]
    assert (trainer.gang, trainer.count, trainer.resources.gpus) == (True, 2, 1)
    with pytest.raises(ConfigError, match=r"training.gpus is 3: its 2 ranks need as many whole GPUs each, or none"):
        config_of(tmp_path, SMALL + ranks.replace("{parallel", "{gpus: 3, parallel"))
    with pytest.raises(ConfigError, match=r"engines.gpus is 2, but the server computes on 1: change its --tp-size"):
        config_of(tmp_path, SMALL + "engines: {kind: sglang, gpus: 2}\n")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("--api-key, x", "--api-key is not an argument that a run file may give engines of the kind sglang"),
        ("--host=0.0.0.0", "--host is not an argument"),
        ("--trust-remote-code", "--trust-remote-code is not an argument"),
        ("--base-gpu-id, '1'", "--base-gpu-id is not an argument"),
        ("--tp-size, two", "--tp-size must be a whole number above 0, not 'two'"),
    ],
)
def test_run_file_cannot_change_what_a_server_serves(tmp_path: Path, args: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config_of(tmp_path, SGLANG % args)


def test_negative_number_is_a_value_and_no_argument(tmp_path: Path) -> None:
    assert config_of(tmp_path, SGLANG % "--schedule-conservativeness, '-1'").engines.args[1] == "-1"


def test_python_of_the_server_is_relative_to_the_run_file_or_on_the_path(tmp_path: Path) -> None:
    for written, meant in (("sg/bin/python", str(tmp_path / "sg/bin/python")), ("python3", "python3")):
        text = SMALL + f"engines: {{kind: sglang, python: {written}}}\n"
        assert config_of(tmp_path, text).engines.python == meant


@pytest.mark.parametrize(("name", "kind", "gpus"), [("train-gpu", "sglang", 1), ("train-one-gpu", "embedded", 0.5)])
def test_run_files_for_gpus_are_valid(name: str, kind: str, gpus: float) -> None:
    file = Path(__file__).parents[2] / "assets" / f"{name}.yaml"
    config = load_config(file, environ={}).config
    groups = groups_of(config)
    assert (groups["engine"].resources.gpus, groups["trainer"].resources.gpus) == (gpus, gpus)
    assert config.engines.kind == kind


def test_units_get_the_variables_that_their_sections_name_and_the_inherited_ones(tmp_path: Path) -> None:
    search = "  search: {url: 'https://tools.example.org/mcp', session: shared, token: env:SEARCH_TOKEN}\n"
    groups = groups_of(config_of(tmp_path, f"{SMALL}{search}inherit: [MY_KEY]\nmongo: {{url: env:MY_URL}}\n"))
    for name, spec in groups.items():
        own = {"SEARCH_TOKEN"} if name == "toolbox" else set()
        assert spec.env.keys() - {SETTINGS_VARIABLE} == {"MY_KEY"} | own, "the URL of the database is in no environment"
    assert groups["toolbox"].env["SEARCH_TOKEN"] == "env:SEARCH_TOKEN"
