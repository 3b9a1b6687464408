"""Runs a script for mongosh: node executes it, and PyMongo its commands. `python mongosh.py URL SCRIPT`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pymongo.errors
from pymongo import MongoClient

SHELL = """
const fs = require("fs");
function ask(question) {
  fs.writeSync(1, JSON.stringify(question) + "\\n");
  let answer = "";
  for (const piece = Buffer.alloc(65536); !answer.endsWith("\\n"); )
    answer += piece.toString("utf8", 0, fs.readSync(0, piece));
  const found = JSON.parse(answer);
  if (found.failed) throw Object.assign(new Error(found.why), { codeName: found.failed });
  return found;
}
global.require = require;
global.sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
global.print = (text) => ask({ print: text });
global.db = {
  hello: () => ask({ database: "admin", command: { hello: 1 } }),
  getSiblingDB: (database) => ({
    runCommand: (command) => ask({ database, command }),
    auth: (user, password) => ask({ login: [user, password] }),
  }),
};
require("vm").runInThisContext(fs.readFileSync(process.argv[1], "utf8"));
"""


def main(url: str, script: str) -> int:
    client: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=20_000)
    with subprocess.Popen(["node", "-e", SHELL, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        for line in node.stdout:
            question = json.loads(line)
            answer: dict[str, Any] = {"ok": 1}
            if login := question.get("login"):
                client = MongoClient(url, username=login[0], password=login[1], authSource="admin")
                client.admin.command("ping")
            elif "print" in question:
                print(question["print"], flush=True)
            else:
                try:
                    answer = dict(client[question["database"]].command(question["command"]))
                except pymongo.errors.OperationFailure as failed:
                    code = (failed.details or {}).get("codeName") or f"Location{failed.code}"
                    answer = {"failed": code, "why": str(failed)}
            node.stdin.write(json.dumps(answer, default=str).encode() + b"\n")
            node.stdin.flush()
        return node.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
