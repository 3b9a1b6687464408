"""A configuration becomes group specs, can be sent to the coordinator, and documents itself."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import introspection
from agentrl.config.field_types import Section, explanations
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_from_plain, config_to_plain, json_schema
from agentrl.config.sidecars import Sidecar
from agentrl.control.commands.group_specs import specs_of, stop_ranks
from agentrl.errors import ConfigError
from agentrl.protocol.specs import GroupSpec, Life, Probe, Resources, Role
from agentrl.telemetry.control_plane_metrics import CPU, LOOP_LAG, METRICS, RSS, RSS_SLOPE

FULL: dict[str, Any] = {
    "name": "full",
    "dir": "/runs/full",
    "mongo": {"embedded": True},
    "sidecars": {
        "web": {
            "command": "server --port '80 80'",
            "count": 3,
            "env": {"PORT": 8080, "KEY": "env:KEY"},
            "cwd": "/srv",
            "life": "job",
            "ready": {"http": "http://127.0.0.1:80{slot}/", "interval_s": 1, "timeout_s": 2, "failures": 4},
            "live": {"exec": ["true"]},
            "metrics": {"exec": "numbers --all"},
            "after": ["db", "mongo"],
            "hosts": "node1",
            "resources": {"cpus": 0.5, "gpus": 1, "memory_max": "512MiB"},
            "drain_grace_s": 1,
            "term_grace_s": 0,
            "start_deadline_s": 3,
            "orphan_lease_s": 4,
            "fenced": True,
            "log_max": "1MB",
        },
        "db": {"command": ["{python}", "-m", "db"], "speaks": True},
        "gang": {"command": "train", "ranks": 4, "ranks_per_host": 2},
    },
    "hosts": {"node1": {"private": "10.0.0.1"}},
    "alerts": {
        "disable": "unit-hung",
        "rules": [{"name": "slow", "metric": "rate", "of": "web", "below": 0, "clear": 1, "severity": "page"}],
        "sinks": {
            "file": {"path": "alerts.jsonl"},
            "webhook": {"url": "https://example.org/hook"},
            "exec": {"command": "tell me"},
            "mail": {"to": "a@example.org", "from": "b@example.org"},
        },
        "dead_man": {"url": "env:PING", "every_s": 30},
    },
}


def test_every_field_of_a_sidecar_reaches_its_spec():
    mongo, web, db, gang = specs_of(config_from_plain(FULL), run_dir="/runs/full", state_dir="/state")
    assert web == GroupSpec(
        name="web",
        role=Role.SIDECAR,
        command=("server", "--port", "80 80"),
        count=3,
        env={"PORT": "8080", "KEY": "env:KEY"},
        cwd="/srv",
        life=Life.JOB,
        ready=Probe(http="http://127.0.0.1:80{slot}/", interval_s=1, timeout_s=2, failures=4),
        live=Probe(exec=("true",)),
        metrics=Probe(exec=("numbers", "--all")),
        after=("db", "mongo"),
        hosts=("node1",),
        resources=Resources(cpus=0.5, gpus=1, memory_max_bytes=512 << 20),
        drain_grace_s=1,
        term_grace_s=0,
        start_deadline_s=3,
        orphan_lease_s=4,
        fenced=True,
        stop_rank=10,
        log_max_bytes=1_000_000,
    )
    assert (gang.gang, gang.count, gang.ranks_per_host, gang.private) == (True, 4, 2, {"node1": "10.0.0.1"})
    assert (db.speaks, db.cwd, db.stop_rank) == (True, "/runs/full", 11)
    assert (mongo.name, mongo.role, mongo.command) == ("mongo", Role.MONGO, ("{python}", "-m", "daemons.mongo"))
    assert mongo.speaks
    assert not mongo.fenced
    assert mongo.stop_rank > db.stop_rank
    assert mongo.orphan_lease_s > max(web.orphan_lease_s, db.orphan_lease_s, 7200)


def test_without_an_embedded_database_there_is_no_mongo_group():
    (web,) = specs_of(config_from_plain({"name": "a", "sidecars": {"web": {"command": "x"}}}), run_dir="", state_dir="")
    assert web.name == "web"
    assert web == GroupSpec(name="web", role=Role.SIDECAR, command=("x",), stop_rank=10)


def test_equal_configurations_give_equal_fingerprints():
    first, second = (specs_of(config_from_plain(FULL), run_dir="/r", state_dir="/s") for _ in range(2))
    assert [spec.fingerprint() for spec in first] == [spec.fingerprint() for spec in second]


@given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12), max_size=4), max_size=13))
def test_group_is_stopped_after_the_groups_that_need_it(edges):
    # Edges only to smaller numbers: no circle.
    after = {str(name): tuple(str(other) for other in sorted(others) if other < name) for name, others in edges.items()}
    ranks = stop_ranks(after)
    for name, others in after.items():
        assert all(ranks[other] > ranks[name] for other in others if other in ranks)


def test_serialized_configuration_comes_back_unchanged():
    config = config_from_plain(FULL)
    plain = config_to_plain(config)
    assert config_from_plain(plain) == config
    assert config_from_plain(json.loads(json.dumps(plain))) == config
    assert config_from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(plain))) == config
    assert config_to_plain(config_from_plain(plain)) == plain


def test_invalid_serialized_configuration_has_the_same_messages():
    with pytest.raises(ConfigError, match=r"config: sidecars\.web needs the key command\."):
        config_from_plain({"name": "a", "sidecars": {"web": {}}}, where="config")


def test_schema_accepts_valid_files_and_has_every_field():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(FULL, schema)
    for wrong in ({"name": "a", "sidecar": {}}, {"name": 3}, {"name": "a", "sidecars": {"w": {"command": 3}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def _undocumented(place: introspection.Shape, path: str = "") -> list[str]:
    found = []
    section = place.section
    explained = explanations(section) if section is not None and issubclass(section, Section) else {}
    for name, key in zip(section.model_fields if section is not None else (), place.keys, strict=True):
        child = place.child(key)
        assert child is not None
        if not explained.get(name, "").strip():
            found.append(f"{path}{key}")
        inner = child.child("x") if child.is_table else child
        found += _undocumented(inner, f"{path}{key}.") if inner else []
    return found


def test_every_field_has_an_explanation():
    assert _undocumented(introspection.Shape(RunConfig)) == []


def test_schema_has_the_explanation_of_every_field():
    properties = json_schema()["$defs"]["Sidecar"]["properties"]
    assert {key: value["description"] for key, value in properties.items()} == explanations(Sidecar)
    assert "description" in json_schema()["properties"]["alerts"]


def test_values_cannot_be_changed_after_the_check(tmp_path):
    (tmp_path / "run.yaml").write_text("name: a\n")
    config = load_config(tmp_path / "run.yaml", environ={}).config
    with pytest.raises(ValueError, match="frozen"):
        config.name = "b"  # type: ignore[misc]


def test_metrics_are_declared_once_with_help():
    assert all(name == metric.name and metric.help.endswith(".") for name, metric in METRICS.items())
    assert CPU.in_words(93.4) == "93.4 %"
    assert RSS.in_words(1.5 * 2**30) == "1.5 GiB"
    assert RSS_SLOPE.in_words(2**20) == "1 MiB/h"
    assert LOOP_LAG.in_words(1234.5) == "1,234 ms"
    assert LOOP_LAG.is_normal(10)
    assert not LOOP_LAG.is_normal(1000)
