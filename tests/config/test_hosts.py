"""Groups name hosts by name or by label; a wrong word is one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.serialization import config_from_plain
from agentrl.control.commands.group_specs import specs_of
from agentrl.errors import ConfigError


def _run(words: Any, hosts: dict[str, Any]) -> dict[str, Any]:
    return {"name": "r", "hosts": hosts, "sidecars": {"web": {"command": "sleep 1", "hosts": words}}}


HOSTS = {"a": {}, "b": {"labels": ["gpu", "fast"]}, "c": {"labels": "gpu"}}


@pytest.mark.parametrize(
    ("words", "names"),
    [("a", ("a",)), ("gpu", ("b", "c")), (["fast", "gpu", "a"], ("b", "c", "a")), ([], ())],
)
def test_names_and_labels_become_names_of_hosts(words: Any, names: tuple[str, ...]) -> None:
    (web,) = specs_of(config_from_plain(_run(words, HOSTS)), run_dir="/r", state_dir="/s")
    assert web.hosts == names


def test_without_declared_hosts_any_name_is_a_host() -> None:
    (web,) = specs_of(config_from_plain(_run("node7", {})), run_dir="/r", state_dir="/s")
    assert web.hosts == ("node7",)


@pytest.mark.parametrize(
    ("words", "hosts", "message"),
    [
        ("gpus", HOSTS, "sidecars.web.hosts names the unknown host or label 'gpus'; did you mean gpu?"),
        ("a", {"a": {"labels": "b"}, "b": {}}, "hosts.a.labels has 'b', which is the name of a host"),
        ("a", {"a": {"labels": "x y"}}, "hosts.a.labels has 'x y', which is no label"),
        ([], {"a b": {}}, "is no name of a host"),
    ],
)
def test_a_wrong_word_is_one_sentence(words: Any, hosts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_plain(_run(words, hosts))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("hosts", "listen", "message"),
    [
        ({"b": {"runs": "steward"}}, "tcp://127.0.0.1:7400", "hosts.b.runs names 'steward'"),
        ({"b": {"runs": "engine"}}, "", "hosts.b.runs needs coordinator.listen"),
        ({"b": {"dir": "runs/b"}}, "tcp://127.0.0.1:7400", "hosts.b.dir is 'runs/b'; write the whole path"),
        ({"b": {"runs": "engine", "port": 70000}}, "tcp://127.0.0.1:7400", "hosts.b.port"),
    ],
)
def test_groups_that_cannot_run_elsewhere_are_refused(hosts: dict[str, Any], listen: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_plain({"name": "r", "hosts": hosts, "coordinator": {"listen": listen}})
    assert message in str(refused.value)


def test_groups_of_the_data_plane_run_where_hosts_run_them() -> None:
    plain = {
        "name": "r",
        "hosts": {"b": {"runs": ["sampler", "engine"]}, "c": {"runs": "engine"}},
        "coordinator": {"listen": "tcp://127.0.0.1:7400"},
        "model": {"build": "tiny"},
        "environments": {"quiz": {"dataset": "quiz.jsonl"}},
    }
    specs = {spec.name: spec for spec in specs_of(config_from_plain(plain), run_dir="/r", state_dir="/s")}
    assert specs["engine"].hosts == ("b", "c")
    assert specs["sampler"].hosts == ("b",)
    assert specs["trainer"].hosts == specs["steward"].hosts == specs["mongo"].hosts == ()
