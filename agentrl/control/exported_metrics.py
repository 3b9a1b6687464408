"""Translates the rows of a run and the newest metrics of its units into families of Prometheus. Pure.

Invariants:
- Nothing is counted here: each value comes from a row or the metric store at the moment of the scrape.
- A name comes from a declared metric, never from a unit. Names that units chose are values of a label.
- Every series of a family has the labels of that family, and the label `run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentrl.protocol.control_commands import StatusReport
from agentrl.telemetry import data_plane_metrics, learning_metrics
from agentrl.telemetry.control_plane_metrics import METRICS, Metric

PREFIX = "agentrl"
_Of = TypeVar("_Of", bound=tuple[str, ...])


def _declared(module: object) -> dict[str, Metric]:
    return {metric.name: metric for metric in vars(module).values() if isinstance(metric, Metric)}


DECLARED: Mapping[str, Metric] = {
    **{metric.name: metric for metric in learning_metrics.OF_STEPS},
    **_declared(learning_metrics),
    **_declared(data_plane_metrics),
    **METRICS,
}
"""All declared metrics of units, by name."""


class RunCollector(Collector):
    """The families of one moment."""

    def __init__(self, report: StatusReport, metrics: Mapping[str, Mapping[str, float]]) -> None:
        self._report = report
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._of_run()
        yield from self._of_units()
        yield from self._of_hosts()
        yield from self._reported()

    def _family(
        self, name: str, help: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", help, labels=("run", *labels))
        for of, value in values:
            family.add_metric((self._report.run.name, *of), value)
        return family

    def _of_run(self) -> Iterator[GaugeMetricFamily]:
        report = self._report
        yield self._family("run_state", "1 for the state of the run.", ("state",), [((report.run.state,), 1.0)])
        active = Counter((row.rule, row.severity.value, row.state.value) for row in report.alerts)
        yield self._family("alerts", "Alerts that are not resolved.", ("rule", "severity", "state"), _counts(active))
        yield self._family("operations", "Operations that have not ended.", (), [((), len(report.operations))])
        busy = report.pulse.busy if report.pulse else {}
        yield self._family(
            "busy_share",
            "Share of the capacity of a role that is in use.",
            ("role",),
            [((role,), share) for role, share in busy.items()],
        )

    def _of_units(self) -> Iterator[GaugeMetricFamily]:
        report = self._report
        units = Counter((row.group, row.role, row.state.value) for row in report.units)
        yield self._family("units", "Units by state.", ("group", "role", "state"), _counts(units))
        yield self._family(
            "units_desired",
            "Units that a group should have.",
            ("group",),
            [((g.name,), g.desired) for g in report.groups],
        )
        yield self._family(
            "unit_weights_version",
            "Version of the weights that a unit serves or trains.",
            ("unit",),
            [((row.unit,), row.weights) for row in report.units if row.weights is not None],
        )

    def _of_hosts(self) -> Iterator[GaugeMetricFamily]:
        hosts = self._report.hosts
        states = Counter((row.state,) for row in hosts)
        yield self._family("hosts", "Hosts by state.", ("state",), _counts(states))
        for name, help, values in (
            ("host_cpu_percent", "Processor time of a host, in %.", [(h.host, h.cpu_percent) for h in hosts]),
            ("host_memory_used_bytes", "Memory in use.", [(h.host, float(h.memory_used_bytes)) for h in hosts]),
            (
                "host_disk_free_bytes",
                "Free bytes of the disk of the run.",
                [(h.host, float(h.disk_free_bytes)) for h in hosts],
            ),
        ):
            yield self._family(name, help, ("host",), [((host,), value) for host, value in values])

    def _reported(self) -> Iterator[GaugeMetricFamily]:
        """One family for each declared metric, and one for all others."""
        declared: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        others: list[tuple[tuple[str, ...], float]] = []
        for unit, values in self._metrics.items():
            for name, value in values.items():
                base, _, of = name.partition("/")
                if base in DECLARED:
                    declared.setdefault(base, []).append(((unit, of), value))
                else:
                    others.append(((unit, name), value))
        for base, series in sorted(declared.items()):
            yield self._family(f"unit_{base}", DECLARED[base].help, ("unit", "of"), series)
        yield self._family("unit_other", "Metrics that units chose themselves.", ("unit", "metric"), others)


def _counts(counted: Counter[_Of]) -> list[tuple[tuple[str, ...], float]]:
    return [(of, float(count)) for of, count in counted.items()]
