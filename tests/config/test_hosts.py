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
