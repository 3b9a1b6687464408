"""`agentrl steps show` and the console's page of a step name the active terms of the loss."""

from __future__ import annotations

import json

from agentrl.protocol.data_commands import Story
from agentrl.telemetry.learning_metrics import OF_STEPS
from agentrl.telemetry.loss_terms import TERMS, in_words, is_term
from tests.cli.conftest import Shell
from tests.cli.scripted import Scripted
from tui.model import data_tables

METRICS = {"loss": 0.25, "term_minirl": 0.905, "term_clip": 0.07, "term_token_mask": 0.0}
STEP = {
    "id": "trainer-0.1@1/000007",
    "status": "committed",
    "base_version": 3,
    "tasks": ["t"],
    "filtered": [],
    "records": ["r"],
    "metrics": METRICS,
}


def test_steps_show_names_the_terms_of_the_loss(coordinator: Scripted, shell: Shell) -> None:
    coordinator.answers["show_step"] = lambda _: Story(STEP)
    shown = shell("steps", "show", STEP["id"]).out.splitlines()
    start = next(number for number, line in enumerate(shown) if "terms of the loss" in line)
    assert shown[start + 1 : start + 5] == [
        "    minirl (masked log-probs weighed by a capped ratio): 90.5 % of tokens as they are",
        "    clip: 7 % of tokens beyond the clip",
        "    token_mask: 0 % of tokens outside masks.token",
        "  loss: 0.25",
    ]
    assert not any("term_" in line for line in shown), "a share is shown once"
    answer = json.loads(shell("--json", "steps", "show", STEP["id"]).out)
    assert answer["document"]["metrics"] == METRICS


def test_the_page_of_a_step_has_the_same_lines() -> None:
    lines = ["".join(part.text for part in line) for line in data_tables.of_step(Story(STEP), 100)]
    assert [line.strip() for line in lines if line.strip() in in_words(METRICS)] == in_words(METRICS)
    assert not any("term_" in line for line in lines)


def test_a_step_without_terms_has_no_such_lines() -> None:
    assert in_words({"loss": 1.0, "entropy": 2.0}) == []
    lines = data_tables.of_step(Story(STEP | {"metrics": {"loss": 1.0}}), 100)
    assert not any("terms" in part.text for line in lines for part in line)


def test_every_term_is_a_declared_metric() -> None:
    assert set(TERMS) <= set(OF_STEPS)
    assert all(is_term(metric.name) for metric in TERMS)
