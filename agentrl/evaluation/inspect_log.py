"""Results as logs of inspect: one `.eval` file for each model and environment.

Such a file is a zip of JSON documents: a header, the samples, and a summary of each sample. An attempt is an epoch of
its sample. Written for schema 2, which inspect has read since version 0.3.50.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.evaluation.summaries import summaries
from agentrl.protocol.evaluation_commands import Attempt

SCHEMA = 2
_SCORE = "score"
_LONGEST_NAME = 200
"""Bytes."""


def write(attempts: Sequence[Attempt], directory: Path) -> list[Path]:
    """Returns the files, in the order of the results."""
    parts: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        parts.setdefault((attempt.environment, attempt.model), []).append(attempt)
    directory.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for (environment, model), members in parts.items():
        file = directory / f"{_name(environment, model)}.eval"
        if file in files:
            file = directory / f"{_name(environment, model, apart=True)}.eval"
        files.append(file)
        _write(members, environment, model, file)
    return files


def _name(environment: str, model: str, *, apart: bool = False) -> str:
    """Of a file. Names that are the same without odd characters, or too long, are told apart by a digest."""
    plain = re.sub(r"[^\w.-]+", "-", f"{environment}_{model}")
    if not apart and len(plain.encode()) <= _LONGEST_NAME:
        return plain
    short = plain.encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"{short}-{_digest(environment, model)[:8]}"


def _write(attempts: Sequence[Attempt], environment: str, model: str, file: Path) -> None:
    ordered = sorted(attempts, key=lambda one: (one.task, one.attempt))
    half = file.with_suffix(".half")
    with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
        for one in ordered:
            name = f"samples/{one.task}_epoch_{_epoch(one)}.json"
            archive.writestr(name, json.dumps(_sample(one)))
        archive.writestr("summaries.json", json.dumps([_summary(one) for one in ordered]))
        archive.writestr("header.json", json.dumps(_header(ordered, environment, model)))
    half.replace(file)


def _header(attempts: Sequence[Attempt], environment: str, model: str) -> dict[str, Any]:
    tasks = list(dict.fromkeys(attempt.task for attempt in attempts))
    times = sorted(attempt.at for attempt in attempts if attempt.at)
    began, ended = (times[0], times[-1]) if times else ("", "")
    own = _digest(environment, model, began)
    return {
        "version": SCHEMA,
        "status": "success",
        "eval": {
            "eval_id": own,
            "run_id": own,
            "task_id": own,
            "created": began,
            "task": environment,
            "dataset": {"name": environment, "samples": len(tasks), "sample_ids": tasks},
            "model": f"agentrl/{model}",
            "config": {"epochs": max(_epoch(attempt) for attempt in attempts)},
        },
        "plan": {},
        "results": _results(attempts),
        "stats": {"started_at": began, "completed_at": ended},
    }


def _results(attempts: Sequence[Attempt]) -> dict[str, Any]:
    (found,) = summaries(attempts)
    metrics = {"mean": found.mean, "margin": found.margin, **{f"pass@{k}": at for k, at in found.passed.items()}}
    listed = {name: {"name": name, "value": value} for name, value in metrics.items() if value is not None}
    scores = [{"name": _SCORE, "scorer": _SCORE, "metrics": listed}]
    return {"total_samples": len(attempts), "completed_samples": found.attempts, "scores": scores}


def _sample(one: Attempt) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": one.query}]
    for number, turn in enumerate(one.turns):
        tools = turn.get("tools", ())
        calls = [
            {"id": f"{number}/{place}", "type": "function", "function": tool["tool"], "arguments": _plain(tool)}
            for place, tool in enumerate(tools)
        ]
        messages.append({"role": "assistant", "content": turn.get("text", ""), "tool_calls": calls or None})
        messages += [
            {"role": "tool", "content": tool["result"], "function": tool["tool"], "tool_call_id": call["id"]}
            for tool, call in zip(tools, calls, strict=True)
        ]
    return _summary(one) | {
        "messages": messages,
        "output": {"model": f"agentrl/{one.model}", "choices": []},
        "total_time": one.took_s,
    }


def _summary(one: Attempt) -> dict[str, Any]:
    facts = {"outcome": one.outcome, "tags": list(one.tags), "difficulty": one.difficulty}
    return {
        "id": one.task,
        "epoch": _epoch(one),
        "input": one.query,
        "target": one.answer,
        "metadata": facts | ({"error": one.error} if one.error else {}),
        "scores": {_SCORE: {"value": one.score, "metadata": one.parts}} if one.is_result else {},
    }


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=11).hexdigest()


def _plain(tool: dict[str, Any]) -> dict[str, Any]:
    arguments = tool.get("arguments")
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _epoch(one: Attempt) -> int:
    return one.attempt + 1
