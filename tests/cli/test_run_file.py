"""How the command line shows and checks a run file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.cli.run_file import check_inputs
from agentrl.config.load import load_config
from agentrl.errors import ExitCode, OperationFailedError
from tests.cli.conftest import Shell

RUN_FILE = """
name: demo
sidecars:
  web:
    command: sleep 1000
    env: {API_KEY: hunter2, HF_TOKEN: env:MY_TOKEN, MODE: fast}
"""


@pytest.fixture(autouse=True)
def run_file(shell: Shell) -> None:
    (shell.home.parent / "run.yaml").write_text(RUN_FILE)


@pytest.mark.parametrize("how", [(), ("--sources",), ("--given",), ("--json",), ("--json", "--sources")])
def test_secret_in_the_file_is_hidden(shell: Shell, how: tuple[str, ...]) -> None:
    result = shell("config", "show", *how)
    assert "hunter2" not in result.out + result.err
    assert "(hidden)" in result.out
    assert "env:MY_TOKEN" in result.out
    assert "fast" in result.out


def test_check_suggests_a_reference_in_place_of_a_secret(shell: Shell) -> None:
    result = shell("config", "check")
    assert "run.yaml:6: sidecars.web.env.API_KEY looks like a literal secret" in result.err
    assert "env:NAME or file:PATH" in result.err
    assert "with 1 unit is valid" in result.out
    (advice,) = shell("config", "check", "--json").json["advice"]
    assert "API_KEY" in advice
    assert "HF_TOKEN" not in advice


TRAINS = """
name: learns
model: {build: tiny}
environments: {shop: {dataset: rows.jsonl}}
"""
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
QWEN3 = json.dumps({"model_type": "qwen3", "num_key_value_heads": 1, **dict.fromkeys(_SIZES, 1)})
NO_TENSORS, ONE_TENSOR = "{}", '{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
WEIGHTS = {"model.safetensors": chr(len(NO_TENSORS)) + 7 * "\0" + NO_TENSORS}
CUT_OFF = {"model.safetensors": chr(len(ONE_TENSOR)) + 7 * "\0" + ONE_TENSOR + 9 * "x"}
POINTER = {"model.safetensors": "version https://git-lfs.github.com/spec/v1\n"}
PLAIN_TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
FINE = '{"query": "what costs a pear?", "answer": 3}\n'


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (None, "environments.shop: There is no dataset "),
        (FINE + '{"answer": 4}\n', "/rows.jsonl line 2 has no query"),
        (FINE + "{nonsense\n", "rows.jsonl line 2 is no JSON"),
        (FINE.replace("}", ', "split": "test"}'), "rows.jsonl has no rows to train on"),
    ],
)
def test_bad_dataset_row_is_an_error_with_its_place(shell: Shell, rows: str | None, sentence: str) -> None:
    folder = shell.home.parent
    (folder / "learns.yaml").write_text(TRAINS)
    if rows is not None:
        (folder / "rows.jsonl").write_text(rows)
    assert sentence in shell("config", "check", "learns.yaml", expect=ExitCode.CONFIG).err
    error = shell("config", "check", "learns.yaml", "--json", expect=ExitCode.CONFIG).json["error"]
    assert sentence in error["message"]


def test_run_that_was_not_taken_down_may_have_bad_rows(shell: Shell) -> None:
    (shell.home.parent / "learns.yaml").write_text(TRAINS)
    assert "There is no dataset" in shell("up", "learns.yaml", "--dry-run", expect=ExitCode.CONFIG).err
    state = shell.home / "learns"
    state.mkdir(parents=True)
    (state / "coordinator.json").write_text("{}")
    result = shell("up", "learns.yaml", "--dry-run")
    assert "There is no dataset" in result.err
    assert "steward-0" in result.out


def test_crash_of_the_dataset_check_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, program = tmp_path / "learns.yaml", tmp_path / "program"
    file.write_text(TRAINS)
    program.write_text("#!/bin/sh\necho '[{'\nexit 3\n")
    program.chmod(0o700)
    loaded = load_config(file)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(OperationFailedError, match=r"the program that does so ended with 3\."):
        check_inputs(loaded, ())


def test_dataset_given_by_set_is_checked(shell: Shell) -> None:
    folder = shell.home.parent
    (folder / "learns.yaml").write_text(TRAINS)
    (folder / "other.jsonl").write_text(FINE + FINE.replace("}", ', "split": "test"}'))
    result = shell("config", "check", "learns.yaml", "--set", f"environments.shop.dataset={folder}/other.jsonl")
    counted = (
        "environments.shop: 1 of 1 held-out prompts are also in the training split; other.jsonl line 2 is held out"
    )
    assert counted in result.err
    assert "pear" not in result.err, "prompts are data, and this may be a log"
    assert "is valid" in result.out


def test_dataset_without_answers_is_reported_with_its_columns(shell: Shell) -> None:
    (shell.home.parent / "learns.yaml").write_text(TRAINS)
    (shell.home.parent / "rows.jsonl").write_text('{"query": "2 pears", "anwser": "4"}\n')
    result = shell("config", "check", "learns.yaml")
    assert "environments.shop: no row has an answer" in result.err
    assert "other columns are: anwser. Name the column one of answer, expected_answer" in result.err


def test_up_checks_datasets_before_it_starts_anything(shell: Shell) -> None:
    folder = shell.home.parent
    (folder / "learns.yaml").write_text(TRAINS)
    error = shell("up", "learns.yaml", "--json", expect=ExitCode.CONFIG).json["error"]
    assert error["message"].startswith("environments.shop: There is no dataset ")
    assert not list(shell.home.iterdir())
    (folder / "rows.jsonl").write_text(FINE + FINE.replace("}", ', "split": "test"}'))
    result = shell("up", "learns.yaml", "--dry-run")
    assert "1 of 1 held-out prompts are also in the training split; rows.jsonl line 2 is held out" in result.err
    assert "Would do" in result.out


def test_all_files_that_are_missing_are_named_at_once(shell: Shell) -> None:
    folder = shell.home.parent
    named = "{dataset: rows.jsonl, evaluation: held.jsonl}"
    (folder / "learns.yaml").write_text(
        "name: learns\nmodel: {path: weights}\n"
        f"environments: {{shop: {named}, zoo: {{dataset: animals.jsonl, tools: [a, b]}}}}\n"
        "rollout: {code: [one.py, two.py]}\n"
        "tools: {a: {command: 'sh gone.sh'}, b: {command: no-such-program}}\n"
    )
    for verb in (("config", "check"), ("up",)):
        error = shell(*verb, "learns.yaml", "--json", expect=ExitCode.CONFIG).json["error"]["message"]
        assert "The configuration has 8 mistakes:" in error
        for missing in ("rows", "held", "animals", "one.py", "two.py", "gone.sh", "no-such-program", "weights"):
            assert error.count(missing) == 1, (missing, error)
    assert not list(shell.home.iterdir())


def test_missing_dataset_names_the_command_that_makes_it(shell: Shell) -> None:
    made_by = "made_by: python -m assets.shop_dataset rows.jsonl"
    (shell.home.parent / "learns.yaml").write_text(TRAINS.replace("rows.jsonl", f"rows.jsonl, {made_by}"))
    error = shell("config", "check", "learns.yaml", "--json", expect=ExitCode.CONFIG).json["error"]
    assert error["message"].startswith("environments.shop: There is no dataset ")
    assert error["hint"] == "It is made by `python -m assets.shop_dataset rows.jsonl`."


IS_A_JOB = """
name: shown
model: {build: tiny}
training: {loss: sft, demonstrations: shown.jsonl, steps: 2}
"""


def test_up_of_a_job_file_suggests_agentrl_train(shell: Shell) -> None:
    folder = shell.home.parent
    file = folder / "shown.yaml"
    file.write_text(IS_A_JOB)
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    (folder / "shown.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    trains_it = f"`agentrl train {file}` trains it."
    for options in ((), ("--dry-run",)):
        assert trains_it in shell("up", "shown.yaml", *options, expect=ExitCode.CONFIG).err
    assert not list(shell.home.iterdir()), "no coordinator without units"
    checked = shell("config", "check", "shown.yaml").out
    assert "with 0 units is valid. " in checked
    assert trains_it in checked
    (folder / "shown.jsonl").unlink()
    result = shell("config", "check", "shown.yaml", expect=ExitCode.CONFIG).err
    assert f"training.demonstrations: there is no file {folder}/shown.jsonl." in result


def test_up_of_a_file_without_units_is_refused_with_the_reason(shell: Shell) -> None:
    (shell.home.parent / "bare.yaml").write_text("name: bare\n")
    assert "neither `environments` nor `sidecars`" in shell("up", "bare.yaml", expect=ExitCode.CONFIG).err
    assert "neither `environments` nor `sidecars`" in shell("config", "check", "bare.yaml").out


def test_up_of_a_file_without_units_stops_a_live_run(shell: Shell) -> None:
    (shell.home.parent / "bare.yaml").write_text("name: bare\n")
    state = shell.home / "bare"
    state.mkdir(parents=True)
    (state / "coordinator.json").write_text("{}")
    shell("up", "bare.yaml", "--dry-run")


UNREADABLE = {
    "gone.py": "rollout.code: there is no file {folder}/gone.py.",
    "agents.txt": "rollout.code: {folder}/agents.txt is no Python file.",
    ".": "rollout.code: {folder} is no Python file.",
    "wrong.py": "rollout.code: {folder}/wrong.py, line 1, column 9: SyntaxError: '(' was never closed.",
}


def test_unreadable_code_is_an_error_before_anything_is_started(shell: Shell) -> None:
    folder = shell.home.parent
    (folder / "rows.jsonl").write_text(FINE)
    (folder / "agents.txt").touch()
    (folder / "agents.py").write_text("raise SystemExit('it is not run')\n")
    (folder / "wrong.py").write_text("def half(\n")
    file = folder / "learns.yaml"
    file.write_text(f"{TRAINS}rollout: {{code: [agents.py]}}\n")
    shell("config", "check", "learns.yaml")
    file.write_text(f"{TRAINS}rollout: {{code: [agents.py, {', '.join(UNREADABLE)}]}}\n")
    refused_before_the_start(shell, [sentence.format(folder=folder) for sentence in UNREADABLE.values()])


def refused_before_the_start(shell: Shell, sentences: Sequence[str]) -> None:
    """Check, up and doctor name exactly these problems, and nothing is started."""
    for verb in (("config", "check"), ("up",)):
        error = shell(*verb, "learns.yaml", "--json", expect=ExitCode.CONFIG).json["error"]["message"]
        assert [error.count(sentence) for sentence in sentences] == [1] * len(sentences), error
    checks = shell("doctor", "learns.yaml", "--json", expect=None).json
    assert [check["sentence"] for check in checks if check["name"] == "files"] == sentences
    assert not list(shell.home.iterdir())


SERVERS_THAT_CANNOT_START = {
    "command: no-such-program": "command: there is no program no-such-program on the PATH.",
    "command: ./server": "command: there is no program ./server.",
    "command: '{python} -m no_such_package.server'": "command: there is no module no_such_package.",
    "command: 'sh gone.sh'": "command: there is no file {folder}/gone.sh.",
    "command: '{python} -u gone.py --x'": "command: there is no file {folder}/gone.py.",
    "command: '{python} wrong.py'": (
        "command: {folder}/wrong.py, line 1, column 9: SyntaxError: '(' was never closed."
    ),
    "command: '{python} -m x', cwd: gone": "cwd: there is no directory {folder}/gone.",
}


def test_tool_server_that_cannot_be_started_is_an_error(shell: Shell) -> None:
    folder = shell.home.parent
    (folder / "rows.jsonl").write_text(FINE)
    (folder / "wrong.py").write_text("def half(\n")
    (folder / "fine.py").touch()
    file = folder / "learns.yaml"
    file.write_text(TRAINS + "tools: {mine: {command: '{python} fine.py'}}\n")
    shell("config", "check", "learns.yaml")
    servers = ", ".join(f"t{number}: {{{server}}}" for number, server in enumerate(SERVERS_THAT_CANNOT_START))
    file.write_text(f"{TRAINS}tools: {{{servers}}}\n")
    sentences = (sentence.format(folder=folder) for sentence in SERVERS_THAT_CANNOT_START.values())
    refused_before_the_start(shell, [f"tools.t{number}.{sentence}" for number, sentence in enumerate(sentences)])


def test_warm_up_that_cannot_be_read_is_an_error_with_its_place(shell: Shell) -> None:
    folder = shell.home.parent
    (folder / "rows.jsonl").write_text(FINE)
    (folder / "learns.yaml").write_text(TRAINS + "training: {warmup: {dataset: shown.jsonl, steps: 1}}\n")
    assert "training.warmup.dataset: There is no dataset" in shell("up", "learns.yaml", expect=ExitCode.CONFIG).err
    (folder / "shown.jsonl").write_text('{"prompt": "1 + 1?", "completion": "2"}\n')
    assert "shown.jsonl line 1 is not a demonstration" in shell("up", "learns.yaml", expect=ExitCode.CONFIG).err


@pytest.mark.parametrize(
    ("files", "kind", "sentence"),
    [
        (None, "embedded", "model.path: there is no directory {folder}/model."),
        ({}, "embedded", "{folder}/model is not a model: config.json: No such file or directory."),
        ({"config.json": QWEN3}, "embedded", "model.path: {folder}/model has no *.safetensors."),
        ({"config.json": QWEN3, "adapter_config.json": "{}"}, "embedded", "has adapters, which are no whole model."),
        ({"config.json": QWEN3, **CUT_OFF}, "embedded", " is cut off: it has 79 of 86 bytes."),
        ({"config.json": QWEN3, **POINTER}, "embedded", " is no file of weights, or is cut off."),
        ({"config.json": '{"model_type": "bert"}', **WEIGHTS}, "sglang", "Models of the type 'bert' cannot be trained"),
        (
            {"config.json": '{"model_type": "llava", "vision_config": {}}', **WEIGHTS},
            "sglang",
            "reads images, and it is not known how models of the type 'llava' do.",
        ),
        (
            {"config.json": '{"model_type": "qwen2_5_vl", "vision_config": {}}', **WEIGHTS},
            "embedded",
            "{folder}/model reads images and has no preprocessor_config.json.",
        ),
        ({"config.json": QWEN3, **WEIGHTS}, "embedded", "The tokenizer {folder}/model/tokenizer.json cannot be read"),
        (
            {"config.json": QWEN3.replace("qwen3", "llama"), "tokenizer.json": PLAIN_TOKENIZER, **WEIGHTS},
            "sglang",
            "The model has no chat template, and the tokenizer lacks the control tokens of every known one.",
        ),
    ],
)
def test_model_that_cannot_be_served_and_trained_is_an_error(
    shell: Shell, files: dict[str, str] | None, kind: str, sentence: str
) -> None:
    folder = shell.home.parent
    (folder / "rows.jsonl").write_text(FINE)
    for name, text in ({} if files is None else {"": "", **files}).items():
        (folder / "model").mkdir(exist_ok=True)
        if name:
            (folder / "model" / name).write_text(text)
    engine = "{kind: sglang, args: [--device, cpu]}" if kind == "sglang" else "{}"
    run_file = TRAINS.replace("{build: tiny}", "{path: model}") + f"engines: {engine}\n"
    (folder / "learns.yaml").write_text(run_file)
    for verb in (("config", "check"), ("up",)):
        assert sentence.format(folder=folder) in shell(*verb, "learns.yaml", expect=ExitCode.CONFIG).err


def test_run_option_uses_the_run_file_of_the_last_up(shell: Shell) -> None:
    """The settings of that `up` apply too."""
    state = shell.home / "other"
    state.mkdir(parents=True)
    other = shell.home.parent / "elsewhere" / "other.yaml"
    other.parent.mkdir()
    other.write_text("name: other\nsidecars: {web: {command: sleep 1000}}\n")
    (state / "run.json").write_text(json.dumps({"name": "other", "uuid": "u", "run_dir": "/r", "created_at": 1.0}))
    (state / "last_up.json").write_text(json.dumps({"file": str(other), "sets": ["sidecars.web.count=3"]}))
    checks = {each["name"]: each["sentence"] for each in shell("--run", "other", "doctor", "--json", expect=None).json}
    assert checks["run file"] == f"{other} describes the run other."
    assert "the run other with 3 units" in shell("config", "check", "--run", "other").out
    assert "named twice" in shell("doctor", str(other), "--run", "other", expect=ExitCode.USAGE).err
    assert "There is no run named nobody" in shell("doctor", "--run", "nobody", expect=ExitCode.UNKNOWN).err
    (state / "last_up.json").unlink()
    result = shell("doctor", "--run", "other", expect=ExitCode.CONFIG).err
    assert "The run other does not know its run file" in result
