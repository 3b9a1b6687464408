"""The sandbox of a tool server in a run file: its short form, its paths, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from agentrl.config.load import load_config
from agentrl.config.serialization import config_from_plain, config_to_plain, json_schema
from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import ConfigError

RUN = """\
name: demo
model: {build: tiny}
environments: {shop: {dataset: train.jsonl, tools: shop}}
tools: {shop: {command: server, sandbox: %s}}
"""
DIGEST = f"tools/shell@sha256:{'0' * 64}"


def sandbox_of(folder: Path, text: str) -> Sandbox:
    file = folder / "run.yaml"
    file.write_text(RUN % text)
    return load_config(file, environ={}).config.tools["shop"].sandbox


def test_a_server_has_a_preferred_sandbox_without_network_by_default(tmp_path: Path) -> None:
    assert sandbox_of(tmp_path, "{}") == Sandbox() == sandbox_of(tmp_path, "process")
    assert (Sandbox().kind, Sandbox().required, Sandbox().network) == ("process", False, False)


def test_limits_and_paths_are_read(tmp_path: Path) -> None:
    found = sandbox_of(
        tmp_path, "{required: true, memory: 512MiB, read: [data, /srv/x], write: '{run_dir}/notes', file_size: 1MiB}"
    )
    assert (found.required, found.memory, found.file_size) == (True, 512 << 20, 1 << 20)
    assert found.read == (str(tmp_path / "data"), "/srv/x")
    assert found.write == ("{run_dir}/notes",)


def test_network_is_off_or_a_list_or_that_of_the_host(tmp_path: Path) -> None:
    for text, expected in (
        ("off", False),
        ("[]", False),
        ("true", True),
        ("example.org", ("example.org",)),
        ("[example.org, '*.example.net', 'x.org:8443']", ("example.org", "*.example.net", "x.org:8443")),
    ):
        assert sandbox_of(tmp_path, f"{{network: {text}}}").network == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("chroot", "must be"),
        ("{memory: 1MiB}", "memory must be at least 16MiB"),
        ("{kind: container}", "image is needed by the kind container"),
        ("{image: x}", "image is needed by the kind container"),
        ("{kind: container, image: 'shell:latest'}", "image must name its content"),
        ("{kind: none, required: true}", "required has no meaning"),
        ("{netwrok: true}", "netwrok"),
        ("{network: 'https://example.org'}", "no valid port"),
        ("{network: 5}", "network"),
        ("{kind: none, network: example.org}", "needs the kind process"),
    ],
)
def test_an_impossible_sandbox_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sandbox_of(tmp_path, text)


def test_a_server_behind_a_url_has_no_sandbox() -> None:
    plain = {"name": "a", "tools": {"x": {"url": "http://127.0.0.1/mcp", "sandbox": "none"}}}
    with pytest.raises(ConfigError, match="sandbox is for a server with a command"):
        config_from_plain(plain)


def test_schema_accepts_both_forms_and_a_configuration_reads_itself_again(tmp_path: Path) -> None:
    for text in ("none", "process", "{network: [example.org]}", f"{{kind: container, image: '{DIGEST}'}}"):
        file = tmp_path / "run.yaml"
        file.write_text(RUN % text)
        config = load_config(file, environ={}).config
        assert config_from_plain(config_to_plain(config)) == config
    for value in ("none", {"kind": "process", "memory": "1GiB"}):
        jsonschema.validate({"name": "a", "tools": {"x": {"command": "x", "sandbox": value}}}, json_schema())
