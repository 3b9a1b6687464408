"""Datasets by the name that a hub has for them, and those that are known by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli import app
from agentrl.config.load import load_config
from agentrl.errors import ExitCode
from agentrl.store import datasets
from agentrl.store.hub_datasets import HubError


@pytest.fixture(autouse=True)
def _without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore")  # of the package datasets
def test_a_dataset_of_a_hub_is_read_once_with_the_splits_that_are_known(tmp_path: Path) -> None:
    """The package reads a directory as it reads a name of the hub."""
    hub = tmp_path / "hub"
    hub.mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"{split} {number}?", "answer": number} for number in range(3)]
        (hub / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    word = f"hub:{hub}"
    (tmp_path / "run.yaml").write_text(f"name: x\nmodel: {{build: tiny}}\nenvironments: {{a: {{dataset: '{word}'}}}}\n")
    assert load_config(tmp_path / "run.yaml", environ={}).config.environments["a"].dataset == word
    for _ in ("from the hub", "from the cache"):
        read = datasets.read(Path(word))
        assert [(row.query, row.answer, row.split) for row in read][::3] == [
            ("train 0?", "0", "train"),
            ("test 0?", "0", "eval"),
        ]
        (hub / "train.jsonl").unlink(missing_ok=True)


@pytest.mark.filterwarnings("ignore")
def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"hub:nobody/nothing cannot be read: ") as refused:
        datasets.read("hub:nobody/nothing")
    assert "\n" not in str(refused.value)
    assert "name a file instead" in refused.value.hint
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


def test_gsm8k_is_made_in_the_same_form_where_there_is_no_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["data", "gsm8k", "--dir", str(tmp_path / "d"), "--json"]) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["made"]
    assert "cannot be read" in answer["why"]
    run_file = tmp_path / "d" / "gsm8k.yaml"
    assert len(run_file.read_text().splitlines()) <= 12
    environment = load_config(run_file, environ={}).config.environments["gsm8k"]
    rows = datasets.read(environment.dataset)
    assert [len(datasets.split_of(rows, split, default="")) for split in ("train", "eval")] == [2000, 200]
    assert not datasets.leaks(rows[:2000], rows[2000:])
    for row in rows[::50]:
        steps = [step.partition(" = ") for step in row.extra["steps"].splitlines()]
        assert all(eval(sum_) == int(result) for sum_, _, result in steps)
        assert steps[-1][2] == row.answer
    assert app.run(["data", "gsm8k", "--dir", str(tmp_path / "d"), "--json"]) == ExitCode.REFUSED
    assert app.run(["data", "other", "--json"]) == ExitCode.USAGE
    capsys.readouterr()
    assert app.run(["data", "gsm8k", "--dir", str(run_file / "within"), "--json"]) == ExitCode.USAGE
    assert "cannot be written: Not a directory" in json.loads(capsys.readouterr().out)["error"]["message"]
