"""Secrets are references; their values are never shown or sent."""

from __future__ import annotations

import json

import pytest

from agentrl.config import show
from agentrl.config.load import load_config
from agentrl.config.secrets import SecretRef, is_reference, names_a_secret, parse_reference, resolve_secret
from agentrl.config.serialization import config_to_plain
from agentrl.errors import ConfigError

HIDDEN = "mongodb://root:hunter2@db"


def test_references_are_resolved_at_their_use(tmp_path):
    (tmp_path / "key").write_text("hunter2\n")
    assert resolve_secret("env:DB", {"DB": HIDDEN}) == HIDDEN
    assert resolve_secret(SecretRef(f"file:{tmp_path}/key")) == "hunter2"


@pytest.mark.parametrize("text", ["env:A", "env:_x1", "file:/a b", "file:~/key", "file:relative"])
def test_references_are_recognised(text):
    assert is_reference(text)
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize("text", ["", "env:", "env:1A", "env:A B", "file:", "file:///x", "hunter2", "ENV:A", " env:A"])
def test_other_texts_are_no_references(text):
    assert not is_reference(text)
    with pytest.raises(ValueError, match="must be a reference"):
        parse_reference(text)


def test_missing_secret_names_its_reference_and_the_repair(tmp_path):
    with pytest.raises(ConfigError, match=r"env:DB is empty.*Set the environment variable DB"):
        resolve_secret("env:DB", {})
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        resolve_secret(f"file:{tmp_path}/nothing")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        resolve_secret(f"file:{tmp_path}/empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        resolve_secret(f"file:{tmp_path}/binary")
    (tmp_path / "zero").write_bytes(b"a\0b")
    with pytest.raises(ConfigError, match="NUL"):
        resolve_secret(f"file:{tmp_path}/zero")


def _written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(f"name: demo\n{text}\n")
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"mongo: {{url: '{HIDDEN}'}}",
        "mongo: {url: {password: hunter2}}",
        "mongo: {url: [hunter2]}",
        "sidecars: {web: {command: x, env: {API_TOKEN: [hunter2]}}}",
        "sidecars: {web: {command: x, env: {API_TOKEN: {a: hunter2}}}}",
        "alerts: {sinks: {webhook: {url: hunter2}}}",
        "alerts: {dead_man: {url: hunter2}}",
    ],
)
def test_a_literal_where_a_secret_belongs_is_refused_without_being_repeated(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load_config(_written(tmp_path, text), environ={})
    assert "run.yaml:2" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_config(_written(tmp_path, ""), sets=["mongo.url=hunter2"], environ={})
    assert "hunter2" not in str(caught.value)


def test_only_the_reference_is_shown_and_sent(tmp_path):
    loaded = load_config(
        _written(tmp_path, "mongo: {url: 'env:DB'}\nalerts: {sinks: {webhook: {url: 'file:~/hook'}}}"),
        environ={"DB": HIDDEN},
    )
    assert loaded.config.mongo.url == SecretRef("env:DB")
    everything = json.dumps(config_to_plain(loaded.config)) + repr(show.rows(loaded)) + repr(loaded)
    assert "hunter2" not in everything
    assert {row.key: row.value for row in show.rows(loaded)}["mongo.url"] == "env:DB"


@pytest.mark.parametrize("name", ["API_KEY", "HF_TOKEN", "PGPASSWORD", "client_secret", "AWS_SECRET_ACCESS_KEY", "key"])
def test_names_of_secrets_are_recognised(name):
    assert names_a_secret(name)


@pytest.mark.parametrize("name", ["MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "OMP_NUM_THREADS", "url"])
def test_other_names_are_not_taken_for_secrets(name):
    assert not names_a_secret(name)


def test_literal_secret_works_is_hidden_and_draws_advice(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: demo\nsidecars:\n  web:\n    command: ls\n    env:\n"
        "      API_KEY: hunter2\n      HF_TOKEN: env:HF_TOKEN\n      MODE: fast\n"
    )
    loaded = load_config(file, environ={})
    assert loaded.config.sidecars["web"].env["API_KEY"] == "hunter2"
    assert "hunter2" not in json.dumps(show.document(loaded))
    assert show.document(loaded)["sidecars"]["web"]["env"] == {
        "API_KEY": show.HIDDEN,
        "HF_TOKEN": "env:HF_TOKEN",
        "MODE": "fast",
    }
    assert "hunter2" not in str(show.rows(loaded))
    assert show.advice(loaded) == [
        "run.yaml:6: sidecars.web.env.API_KEY looks like a literal secret; "
        "write a reference instead, env:NAME or file:PATH."
    ]
