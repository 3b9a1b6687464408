"""People read the database of a run with any client: as a user that cannot write, and with tokens as numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from bson import json_util
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from agentrl.config.paths import create_run
from agentrl.errors import ConflictError, ExitCode, UnknownNameError
from agentrl.store import database_users
from agentrl.store.database import Database
from agentrl.store.database_users import reader_url
from agentrl.tokens.binary_format import pack_floats, pack_ids

CALL = {
    "_id": "r1/0",
    "prompt": pack_ids([1, 0]),
    "output": pack_ids([2, 2, 1]),
    "log_probs": pack_floats([-0.5, -0.25, 0.0]),
    "text": "to to hello",
}


def agentrl(*words: str, home: Path, code: int = 0, stdin: str = "") -> str:
    environ = {**os.environ, "AGENTRL_HOME": str(home)}
    command = [sys.executable, "-m", "agentrl", "--json", *words]
    done = subprocess.run(
        command, env=environ, cwd=home, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


async def test_a_reader_can_read_the_run_and_nothing_else(
    mongo_url: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    run = create_run(db.name, tmp_path / "run")
    secret = tmp_path / db.name / "mongo" / "url"
    secret.parent.mkdir(parents=True)
    secret.write_text(mongo_url)
    (Path(run.run_dir) / "config.json").write_text(json.dumps({"name": db.name}))
    await db.insert_many("Task", [{"_id": "t"}])

    made = json.loads(agentrl("database", "user", "ann", home=tmp_path))
    file = tmp_path / "ann.mongo-url"
    assert made == {"user": "ann", "database": db.name, "file": str(file)}
    assert file.stat().st_mode & 0o777 == 0o600
    with MongoClient[dict[str, Any]](file.read_text().strip()) as ann:
        own = ann.get_default_database()
        assert own["Task"].find_one() == {"_id": "t"}
        for forbidden in (
            lambda: own["Task"].update_one({"_id": "t"}, {"$set": {"status": "x"}}),
            lambda: own["New"].insert_one({}),
            lambda: ann["another"]["Task"].find_one(),
        ):
            with pytest.raises(OperationFailure, match="not authorized"):
                forbidden()
        with pytest.raises(OperationFailure, match=r"no globalScriptEngine|JavaScript"):
            own["Task"].find_one({"$where": "true"})
        with pytest.raises(ConflictError, match="has a user ann already"):
            database_users.make(mongo_url, db.name, "ann", tmp_path / "b")
        assert not (tmp_path / "b").exists()
        assert database_users.readers(mongo_url, db.name) == ["ann"]
        agentrl("database", "user", "ann", "--remove", home=tmp_path)
        with pytest.raises(OperationFailure):
            own["Task"].find_one()
    with pytest.raises(UnknownNameError, match="no read-only user ann"):
        database_users.remove(mongo_url, db.name, "ann")


def test_url_of_a_reader_keeps_the_servers_and_no_login_of_the_run() -> None:
    whole = "mongodb://a:1,b:2/x?replicaSet=rs0&tls=true&tlsCAFile=%2Fca.pem"
    login = "&authMechanism=MONGODB-X509&authSource=%24external&tlsCertificateKeyFile=%2Fown.pem"
    made = reader_url(whole + login, "shop", "ann", "p@ss")
    assert made == "mongodb://ann:p%40ss@a:1,b:2/shop?replicaSet=rs0&tls=true&tlsCAFile=%2Fca.pem&authSource=shop"
    assert reader_url("mongodb+srv://u:p@c.example", "shop", "ann", "x").startswith(
        "mongodb+srv://ann:x@c.example/shop?"
    )


def test_model_calls_are_printed_with_numbers_and_text(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"[UNK]": 0, "hello": 1, "to": 2}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    exported = f"{json_util.dumps(CALL)}\n{json_util.dumps({'_id': 'r1/1', 'prompt': b''})}\n"
    printed = agentrl("database", "decode", "--tokenizer", str(tmp_path), home=tmp_path, stdin=exported)
    first, second = map(json.loads, printed.splitlines())
    assert (first["prompt"], first["output"], first["log_probs"]) == ([1, 0], [2, 2, 1], [-0.5, -0.25, 0.0])
    assert (first["output_text"], first["text"]) == ("to to hello", "to to hello")
    assert second == {"_id": "r1/1", "prompt": [], "prompt_text": ""}

    pretty = tmp_path / "one.json"
    pretty.write_text(json_util.dumps([CALL], indent=2))
    assert json.loads(agentrl("database", "decode", str(pretty), home=tmp_path))["output"] == [2, 2, 1]
    damaged = json_util.dumps({**CALL, "output": b"\1abc"})
    refused = json.loads(agentrl("database", "decode", home=tmp_path, stdin=damaged, code=ExitCode.FAILED))
    assert "cut off" in refused["error"]["message"]
    no_json = agentrl("database", "decode", home=tmp_path, stdin="{ _id: 1 }", code=ExitCode.USAGE)
    assert "not extended JSON" in json.loads(no_json)["error"]["message"]
