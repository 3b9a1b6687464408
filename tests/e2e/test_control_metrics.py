"""A scrape of a real coordinator shows its run, and goes on after the coordinator died."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentrl.errors import ExitCode
from tests.e2e.running import Run
from tests.ports import free_triplet
from tests.waiting import eventually

TOKEN = "a-token-of-enough-characters"


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
    assert scrape()["agentrl_run_state", "running"] == 1
    assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 401
    run.kill(run.coordinator_pid())
    eventually(lambda: scrape().get(("agentrl_units", "ready")) == 2, what="a scrape of the next coordinator")

    secret.write_text("short")
    run.config["metrics"]["port"] = free_triplet()
    run.write()
    refused = run.raw("up", str(run.file))
    assert refused.returncode == ExitCode.CONFIG, refused.stderr
    assert "metrics.token needs at least 16" in refused.stderr
