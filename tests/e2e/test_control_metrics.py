"""How a run is seen from outside: a scrape of a real coordinator, and the trace of a command in all logs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.errors import ExitCode
from agentrl.tracing import trace_context
from tests.e2e.running import Run
from tests.ports import free_triplet
from tests.tracing.receiver import Receiver, receiving
from tests.waiting import eventually

TOKEN = "a-token-of-enough-characters"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def test_the_id_of_a_command_is_its_trace_in_all_logs_and_in_its_span(run: Run, receiver: Receiver) -> None:
    run.config |= {"logs": "json", "tracing": {"endpoint": receiver.url}}
    run.sidecar("web", ["sh", "-c", 'echo "my trace is $AGENTRL_TRACEPARENT"; exec sleep 1000'], count=1)
    run.up()
    accepted = run.cli("scale", "web", "2", "--yes")
    trace = str(accepted["operation"]["id"])
    for name, unit in (("coordinator.log", "coordinator"), ("agent.log", "host agent")):
        (log,) = (run.state_dir / "hosts").rglob(name)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        mine = [line for line in lines if line.get("trace_id") == trace]
        assert mine, (name, trace)
        assert {line["unit"] for line in lines} == {unit}
    shown = run.cli("logs", "web-1")["lines"]
    assert shown == [f"my trace is {trace_context.of_operation(trace).header()}"]
    eventually(lambda: "operation scale" in receiver.spans, what="the span of the operation")
    assert receiver.spans["operation scale"].trace_id.hex() == trace
    assert receiver.resources[0]["service.name"] == "coordinator"


def test_scrape_shows_the_run_and_survives_the_coordinator(run: Run) -> None:
    secret = run.file.parent / "scrape"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    port = free_triplet()
    run.sidecar("web", ["sleep", "1000"], count=2)
    run.config["metrics"] = {"port": port, "token": f"file:{secret}"}
    run.up()

    def scrape() -> dict[tuple[str, str], float]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
        except httpx.TransportError:
            return {}
        assert answer.status_code == 200
        return {
            (sample.name, sample.labels.get("state") or sample.labels.get("unit", "")): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    eventually(lambda: scrape().get(("agentrl_units", "ready")) == 2, what="both units in a scrape")
    eventually(lambda: ("agentrl_unit_loop_lag_ms", "coordinator") in scrape(), what="the coordinator's own metrics")
    eventually(lambda: scrape()["agentrl_run_state", "running"] == 1, what="the state of the run")
    assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 401
    run.kill(run.coordinator_pid())
    eventually(lambda: scrape().get(("agentrl_units", "ready")) == 2, what="a scrape of the next coordinator")

    secret.write_text("short")
    run.config["metrics"]["port"] = free_triplet()
    run.write()
    refused = run.raw("up", str(run.file))
    assert refused.returncode == ExitCode.CONFIG, refused.stderr
    assert "metrics.token needs at least 16" in refused.stderr
