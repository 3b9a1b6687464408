"""The data and the agent configuration file of AgentCPM, as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.config.secrets import resolve_secret
from agentrl.errors import ConfigError
from agentrl.store import datasets

FILE = """
browse_agent:
  models:
    - {api_key: env:BROWSE_KEY, base_url: "https://browse.example/v1", model: small}
  timeout: 120
  max_prompt_length: 60000
  min_prompt_length: 1500
  enable_logging: false
  browse_tools: [fetch_url, visit]
  default_purpose: {fetch_url: Summarise this page., visit: Summarise that page.}
  tokenizer_path: null
  status: true
scorer_agent:
  models:
    - {api_key: "<the first key>", base_url: "https://first.example/v1/", model: judge-a}
    - {api_key: "", base_url: "http://127.0.0.1:38889/v1", model: judge-b}
  max_retries: 2
  retry_delay: 1
  backoff_factor: 2
  timeout: 45
  judge_prompt_template: |
    Question: {question} Labeled: {labeled_answer} Predicted: {pred_answer}
    Respond with "Correct" or "Incorrect".
"""
RUN = "name: x\nmodel: {build: tiny}\nenvironments: {a: {dataset: d.jsonl, scorer: agentcpm}}\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))


def test_its_configuration_becomes_models_a_judge_and_summaries(tmp_path: Path) -> None:
    (tmp_path / "agent_config.yml").write_text(FILE)
    (tmp_path / "run.yaml").write_text(f"{RUN}rollout: {{agent_config: agent_config.yml}}\nsummaries: {{on: false}}\n")
    config = load_config(tmp_path / "run.yaml", environ={}).config
    first, second = config.models["agentcpm_judge"]
    assert (first.url, first.model, first.timeout_s) == ("https://first.example/v1", "judge-a", 45)
    assert resolve_secret(str(first.key)) == "<the first key>"
    kept = Path(str(first.key).removeprefix("file:"))
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert second.key is None
    judge = config.judges["agentcpm"]
    assert judge == config.judges["asearcher"]
    assert judge.template.startswith("Question: {query} Labeled: {truth} Predicted: {answer}\n")
    assert judge.template.endswith("end with one line, VERDICT: CORRECT or VERDICT: WRONG\n")
    summaries = config.summaries
    assert (summaries.on, summaries.tools, summaries.longer_than) == (False, ("fetch_url", "visit"), 6000)
    assert (summaries.model, summaries.purpose) == ("agentcpm_browse", "Summarise this page.")
    assert str(config.models["agentcpm_browse"][0].key) == "env:BROWSE_KEY"
    assert "<the first key>" not in config.model_dump_json()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", r"run\.yaml:4: agent\.yml is no YAML"),
        ("other: 1", "has neither scorer_agent nor browse_agent"),
        ("scorer_agent: {models: []}", r"scorer_agent\.models must list at least one model"),
        ("scorer_agent: {models: [{api_key: k, base_url: u}]}", "model 1 of scorer_agent has no model"),
        ("scorer_agent: {models: [{base_url: nowhere, model: m}]}", "'nowhere' is not an address"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "agent.yml").write_text(text)
    (tmp_path / "run.yaml").write_text(f"{RUN}rollout: {{agent_config: agent.yml}}\n")
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "run.yaml", environ={})


def test_its_scorer_needs_that_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    with pytest.raises(ConfigError, match=r"asks the models of rollout\.agent_config: name it"):
        load_config(tmp_path / "run.yaml", environ={})


def test_its_data_files_are_datasets_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(
        '{"id": "task_001", "query": "What is 2+2?", "answer": "4", "scorer": "agentcpm", "answer_schema": "answer"}\n'
        '{"id": "task_002", "Question": "And 3+3?", "Final answer": 6, "scorer": "math", "answer_schema": "boxed"}\n'
        '{"id": "task_003", "q": "Why?", "a": "Because"}\n'
    )
    rows = datasets.read(tmp_path / "data.jsonl")
    assert [(row.query, row.answer, row.scorer, row.answer_schema) for row in rows] == [
        ("What is 2+2?", "4", "agentcpm", "answer"),
        ("And 3+3?", "6", "math", "boxed"),
        ("Why?", "Because", "", ""),
    ]
