"""A scrape of `/metrics`: what it contains, and the token that it needs."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.config.run import RunConfig
from agentrl.control import metrics_listener
from agentrl.control.exported_metrics import DECLARED, RunCollector
from agentrl.control.metrics_listener import MetricsListener
from agentrl.errors import ConfigError
from agentrl.protocol.control_commands import StatusReport
from agentrl.protocol.rows import GroupRow, HostRow, RunRow, UnitRow, UnitState
from tests.waiting import aeventually

TOKEN = "a-token-of-enough-characters"
REPORT = StatusReport(
    run=RunRow("my-run", "u", "running"),
    groups=(GroupRow("web", "sidecar", 2),),
    units=(
        UnitRow("web-0", "web", "sidecar", UnitState.READY),
        UnitRow("web-1", "web", "sidecar", UnitState.BACKOFF),
        UnitRow("engine-0", "engine", "engine", UnitState.READY, weights=4),
    ),
    hosts=(HostRow("a", "up", disk_free_bytes=7),),
)
HOSTILE = 'a"b\\c\n# TYPE x counter'


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and values of the labels, in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exported(metrics: dict[str, dict[str, float]]) -> dict[tuple[str, tuple[str, ...]], float]:
    registry = CollectorRegistry()
    registry.register(RunCollector(REPORT, metrics))
    return samples(generate_latest(registry).decode())


def test_rows_are_families_with_the_name_of_the_run() -> None:
    shown = exported({})
    assert shown["agentrl_run_state", ("my-run", "running")] == 1
    assert shown["agentrl_units", ("web", "sidecar", "my-run", "backoff")] == 1
    assert shown["agentrl_units_desired", ("web", "my-run")] == 2
    assert shown["agentrl_hosts", ("my-run", "up")] == 1
    assert shown["agentrl_host_disk_free_bytes", ("a", "my-run")] == 7
    assert shown["agentrl_unit_weights_version", ("my-run", "engine-0")] == 4


def test_every_declared_metric_is_a_family_of_its_own() -> None:
    shown = exported({"trainer-0": {name: float(place) for place, name in enumerate(DECLARED)}})
    for place, name in enumerate(DECLARED):
        assert shown[f"agentrl_unit_{name}", ("", "my-run", "trainer-0")] == place


def test_names_that_units_chose_stay_values_of_a_label() -> None:
    shown = exported({"web-0": {HOSTILE: 3.0, f"tool_p95_s/{HOSTILE}": 2.0}})
    assert shown["agentrl_unit_other", (HOSTILE, "my-run", "web-0")] == 3
    assert shown["agentrl_unit_tool_p95_s", (HOSTILE, "my-run", "web-0")] == 2
    assert not any(name == "x" for name, _ in shown)


def test_a_port_needs_a_token() -> None:
    for part in ({"port": 9464}, {"token": "env:SCRAPE"}):
        with pytest.raises(ValueError, match="needs both port and token, or neither"):
            RunConfig.model_validate({"name": "my-run", "metrics": part})


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


@pytest.fixture
def config(tmp_path: Path, port: int) -> RunConfig:
    (tmp_path / "scrape").write_text(TOKEN)
    (tmp_path / "scrape").chmod(0o600)
    metrics = {"port": port, "token": f"file:{tmp_path}/scrape"}
    return RunConfig.model_validate({"name": "my-run", "metrics": metrics})


@pytest.fixture
def listener() -> MetricsListener:
    return MetricsListener(lambda: (REPORT, {"web-0": {"step": 5.0}}))


async def test_a_scrape_needs_the_token(listener: MetricsListener, config: RunConfig) -> None:
    listener.check(config)
    listener.configure(config)
    await aeventually(lambda: listener.url)
    async with httpx.AsyncClient() as client:
        for headers in ({}, {"authorization": "Bearer another-token-of-enough"}):
            refused = await client.get(listener.url, headers=headers)
            assert (refused.status_code, "metrics.token" in refused.text) == (401, True)
        right = {"authorization": f"Bearer {TOKEN}"}
        shown = await client.get(listener.url, headers=right)
        assert samples(shown.text)["agentrl_unit_step", ("", "my-run", "web-0")] == 5
        asked = await client.get(listener.url, headers={**right, "accept": "application/openmetrics-text"})
        assert asked.text.endswith("# EOF\n")
        assert (await client.get(f"{listener.url}/x", headers=right)).status_code == 404
    listener.configure(RunConfig.model_validate({"name": "my-run"}))
    await aeventually(lambda: not listener.url)


async def test_a_taken_port_is_refused_and_tried_again_after_a_restart(
    listener: MetricsListener, config: RunConfig, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_listener, "RETRY_S", 0.05)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(ConfigError, match="already in use"):
            listener.check(config)
        listener.configure(config)
        await aeventually(lambda: "is not served: " in listener.trouble)
        assert not listener.url
    await aeventually(lambda: listener.url)
    assert not listener.trouble
    listener.close()
    await aeventually(lambda: not listener.url)


def test_a_token_that_is_missing_or_short_is_refused(listener: MetricsListener, config: RunConfig) -> None:
    file = Path(str(config.metrics.token).removeprefix("file:"))
    file.write_text("short")
    with pytest.raises(ConfigError, match="at least 16"):
        listener.check(config)
    file.unlink()
    with pytest.raises(ConfigError, match="scrape"):
        listener.check(config)
