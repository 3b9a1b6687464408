"""A server behind a URL gets its token from the referenced secret, and no other process gets it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config.data_plane import ToolServer
from tests.toolbox.conftest import MakeToolbox, http_server
from tests.waiting import aeventually


async def test_a_token_is_read_at_each_connection(
    make: MakeToolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text("stale\n")
    monkeypatch.setenv("TENANT", "shop")
    headers = {"X-Tenant": "env:TENANT", "X-Plain": "as it is"}
    with http_server(sys.executable, "-m", "tests.toolbox.authenticated_server", "{port}", "open-sesame") as (url, _):
        server = ToolServer.model_validate(
            {"url": url, "session": "shared", "token": f"file:{secret}", "headers": headers}
        )
        async with make({"guarded": server}) as hands:
            await aeventually(lambda: hands.server("guarded").state == "down")
            assert "stale" not in hands.server("guarded").why
            # A renewed secret needs no restart.
            secret.write_text("open-sesame\n")
            await aeventually(lambda: hands.server("guarded").state == "serving")
            await hands.open("s", "guarded")
            assert (await hands.call("s", "a", "whisper", server="guarded")).content == "you may come in"


async def test_a_missing_secret_is_named(make: MakeToolbox) -> None:
    server = ToolServer.model_validate({"url": "http://127.0.0.1:9/mcp", "token": "env:NOT_SET_ANYWHERE"})
    async with make({"guarded": server}) as hands:
        await aeventually(lambda: "tools.guarded.token" in hands.server("guarded").why)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token": "open-sesame"}, "must be a reference to a secret"),
        ({"headers": {"Authorization": "Bearer open-sesame"}}, "headers.Authorization must be a reference"),
        ({"headers": {"X-Api-Key": "open-sesame"}}, "headers.X-Api-Key must be a reference"),
        ({"headers": {"X Y": "a"}}, "one header line"),
        ({"headers": {"X": "a\r\nHost: b"}}, "one header line"),
        ({"url": "", "command": "server", "token": "env:X"}, "are for a server with an address"),
    ],
)
def test_secrets_must_be_references_and_headers_must_be_valid(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ToolServer.model_validate({"url": "http://127.0.0.1:9/mcp", **settings})
    assert sentence in str(refused.value)
