"""`placement` and the hosts that it starts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config.placement import starts
from agentrl.config.run import RunConfig

LISTENS = {"coordinator": {"listen": "tcp://10.0.0.1:7400"}}


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "demo", **LISTENS, **sections})


def test_a_word_takes_the_defaults_and_without_placement_a_person_starts_agents() -> None:
    assert config().placement.kind == "local"
    assert config(placement="local", hosts={"b": {}}).placement.kind == "local"
    ssh = config(placement="ssh", hosts={"b": {}}).placement
    assert ssh.kind == "ssh"
    assert ssh.ssh is not None
    assert ssh == config(placement={"ssh": {}}, hosts={"b": {}}).placement


def test_several_hosts_of_a_kind_have_its_name_as_a_label_and_disks_of_their_own() -> None:
    found = config(hosts={"gpu": {"count": 2, "labels": "fast", "disk": "/scratch"}, "b": {}}).all_hosts
    assert list(found) == ["gpu-0", "gpu-1", "b"]
    assert found["gpu-1"].labels == ("fast", "gpu")
    assert (found["gpu-1"].disk, found["gpu-1"].count) == ("/scratch/gpu-1", 0)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"placement": {"ssh": {}, "slurm": {}}, "hosts": {"b": {}}}, "takes one of ssh, slurm"),
        ({"placement": "ssh"}, "has no hosts to start"),
        ({"placement": "ssh", "hosts": {"b": {}}, "coordinator": {}}, "needs coordinator.listen"),
        ({"placement": "nowhere", "hosts": {"b": {}}}, "nowhere"),
        ({"hosts": {"b": {"count": 2}, "b-1": {}}}, "makes a host b-1"),
        ({"hosts": {"b": {"count": 2, "node": "n1"}}}, "names one machine"),
        ({"hosts": {"b": {}}, "placement": {"slurm": {"components": [{"hosts": "c"}]}}}, "names the unknown host 'c'"),
        (
            {"hosts": {"b": {}, "c": {}}, "placement": {"slurm": {"components": [{"hosts": "b"}]}}},
            "must have the host c in exactly one component, not in 0",
        ),
    ],
)
def test_contradictions_are_refused_by_name(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(**sections)


def test_a_preview_names_the_hosts_that_are_started() -> None:
    hosts = config(hosts={"b": {"node": "10.0.0.2"}, "gpu": {"count": 9}}, placement="ssh")
    (sentence,) = starts(hosts.placement, hosts.all_hosts)
    assert sentence == "ssh starts the hosts b (10.0.0.2), gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 4 more"
    assert starts(config(hosts={"b": {}}).placement, {}) == ()
