"""Scripted answers of a steward: records with their turns and tokens, steps, errors, tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from agentrl.errors import RefusedError
from agentrl.protocol import control_commands, data_commands
from agentrl.protocol.evaluation_commands import Attempt, EvaluationRow, EvaluationStory, ShowEvaluation
from agentrl.protocol.messages import Permission
from agentrl.protocol.other_model_commands import OtherModelsReport, ServiceRow
from agentrl.protocol.tool_commands import JoinedRows, SandboxRow, ToolLogLine, ToolRow, ToolServerRow, ToolSessionRow
from tests.cli.scripted import Scripted

RECORD = "shop/train/0/000012#r1.s3.a1"


def row(id: str, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "status": "finished",
        "outcome": "answered",
        "turns": 2,
        "generated_tokens": 40,
        "score": 1.0,
    } | more


def story(text: str = "") -> data_commands.RecordStory:
    call = {"versions": [[3, 30], [4, 10]], "engine": "engine-0", "seconds": 0.25, "new_prompt_tokens": 12}
    tool = {
        "server": "shop", "tool": "lookup", "arguments": {"item": text or "flour"}, "status": "timeout",
        "error_class": "infrastructure", "latency_s": 5.0, "result": text,
    }  # fmt: skip
    line = "\n".join(f"line {n} {text}" for n in range(9))
    return data_commands.RecordStory(
        record=row(RECORD, oldest_version=3, newest_version=4),
        task={"query": f"what does it cost {text}"},
        ending={"sentence": "answered (policy)"},
        turns=(
            {
                "index": 0,
                "text": line,
                "reason": "",
                "call": call,
                "parsed": [{"error": "no bracket"}],
                "tool_calls": [tool],
            },
        ),
        attempts=(row(RECORD), row("shop/train/0/000012#r1.s3.a0", outcome="engine died")),
        training={"advantage": 0.5, "trained_in": ["trainer-0.1@1/000007"]},
    )


def call_story(text: str = "", turn: int = 0) -> data_commands.CallStory:
    """A call that failed, after one that worked."""
    at = datetime(2030, 3, 17, 17, 0, tzinfo=UTC)
    same = {"server": "shop", "tool": "lookup", "turn": turn, "requested_at": at}
    failed = {"id": f"{RECORD}/{turn:03d}.1", "status": "timeout", "error_class": "infrastructure", "latency_s": 5.0}
    worked = {"id": f"{RECORD}/{turn:03d}.0", "status": "ok", "error_class": "", "latency_s": 0.01}
    more = {"record": RECORD, "owner": "sampler-3.1", "failed": True, "trained": True, "session": "s-1", "done_at": at}
    called = {"result": f"no answer within 5 s {text}", "arguments": {"item": text or "flour"}}
    return data_commands.CallStory(
        call=same | failed | more | called,
        record=row(RECORD, ending={"sentence": "answered (policy)"}),
        turn={"id": f"{RECORD}/{turn:03d}", "turn": turn, "text": f"I look it up. {text}"},
        session=(same | worked, same | failed),
    )


def segments(text: str = "") -> tuple[data_commands.TokenStretch, ...]:
    """A prompt, an answer of two versions with one unlikely token, and then two branches."""
    line = ("it ", "costs ", f"7{text}", "\n")
    call = f"{RECORD}/c"
    return (
        data_commands.TokenStretch(
            0, -1, "environment", f"{call}0", 0, ids=(1, 2, 3), texts=("what ", "costs ", "flour?")
        ),
        data_commands.TokenStretch(
            1, 0, "model", f"{call}0", 0, True, ids=(4, 2, 5, 6), texts=line,
            log_probs=(-0.01, -0.02, -4.0, -1.0), versions=((3, 2), (4, 2)),
        ),
        data_commands.TokenStretch(2, 1, "environment", f"{call}1", 1, ids=(7,), texts=("go on",)),
        data_commands.TokenStretch(
            3, 2, "model", f"{call}1", 1, True, ids=(8,), texts=("fine",), log_probs=(-0.1,), versions=((4, 1),)
        ),
        data_commands.TokenStretch(4, 1, "environment", f"{call}2", ids=(9,), texts=("instead",)),
        data_commands.TokenStretch(
            5, 4, "model", f"{call}2", ids=(10, 11), texts=("a", "b"), log_probs=(-0.1, -0.2), versions=((4, 2),)
        ),
    )  # fmt: skip


def answers(coordinator: Scripted, text: str = "") -> list[data_commands.ListRows]:
    """Set the answers of the steward. Returns the list that receives all queries."""
    sent: list[data_commands.ListRows] = []

    def records(args: Any) -> data_commands.Page:
        sent.append(args)
        if "nonsense" in args.filter:
            raise RefusedError("There is no field named nonsense.", hint="Did you mean score?")
        running = row(
            "shop/train/0/000013#r0.s0.a0", status="running", doing={"what": "tool call shop.lookup", "age_s": 42}
        )
        return data_commands.Page((running, row(RECORD, error=text)))

    coordinator.answers["list_records"] = records
    coordinator.answers["show_record"] = lambda _: story(text)
    metrics = {"reward_mean": 0.75, "loss": -0.01, "gradient_norm": 1.5}
    step = {"id": "trainer-0.1@1/000007", "status": "committed", "metrics": metrics, "counts": {"records": 64}}
    coordinator.answers["list_steps"] = lambda _: data_commands.Page((step,))
    coordinator.answers["show_step"] = lambda _: data_commands.Story(step, (row(RECORD),), 63)
    coordinator.answers["record_tokens"] = lambda _: data_commands.TokenPart(segments(text), None, 12)
    listed = call_story(text)
    coordinator.answers["list_calls"] = lambda _: data_commands.Page((listed.call,))
    coordinator.answers["show_call"] = lambda _: listed
    sample = data_commands.ToolErrorSample(RECORD, f"{RECORD}/t0.0", text)
    group = data_commands.ToolErrorGroup(
        "shop", "lookup", "malformed", "policy", f"no bracket {text}", 192, samples=(sample,)
    )
    coordinator.answers["tool_errors"] = lambda _: [group]
    _stored(coordinator, text)
    tool_rows(coordinator, text)
    evaluation_rows(coordinator, text)
    other_model_rows(coordinator, text)
    wrong = data_commands.AccountProblem(f"records of no task {text}", 3, (RECORD,))
    coordinator.answers["accounting"] = lambda _: data_commands.AccountReport(
        {"train": {"trained": 30, "dead": 2}}, {"train": {"scored": 240}}, {"taken": 256}, {"committed": 7}, 64,
        {"policy": 240}, (wrong,) if text else (), not text,
    )  # fmt: skip
    return sent


def _replays(coordinator: Scripted, text: str, at: datetime) -> None:
    """A flaky call, with the call that rebuilt its session and a difference."""
    call = f"{RECORD}/040.0"
    short = {
        "id": f"{call}~1f3a9c2e", "operation": "1f3a9c2e", "call": call, "server": "shop", "tool": "lookup",
        "status": "judged", "verdict": "flaky", "agreed": 1, "edited": True, "stopped": False, "who": f"ada{text}",
        "reason": text, "created_at": at,
    }  # fmt: skip
    change = {"path": f"$.price{text}", "then": "17", "now": f"18\n{text}"}
    late = {"call": call, "tool": "lookup", "status": "timeout", "result": text, "latency_s": 20.0, "changes": []}
    late |= {"changes_left_out": 0, "same": True}
    works = late | {"status": "ok", "same": False, "changes": [change], "changes_left_out": 3, "latency_s": 0.25}
    whole = short | {
        "recorded_server": "market", "server_version": f"shop 2{text}", "fault": "", "note": text,
        "arguments": {"item": text}, "rebuilt": [works | {"tool": "calculator"}], "then": late, "runs": [works, late],
    }  # fmt: skip
    row = {"id": RECORD, "score": 1.0, "turns": 41, "generated_tokens": 9000}
    row |= {"why": [f"it has the score 1 without an answer{text}", "it was cut off (token_limit)"]}
    coordinator.answers["list_reviews"] = lambda _: data_commands.Page((row,))
    coordinator.answers["list_replays"] = lambda _: data_commands.Page((short | {"counts": {"runs": 2, "rebuilt": 1}},))
    coordinator.answers["show_replay"] = lambda _: data_commands.Story(whole)


def tool_rows(coordinator: Scripted, text: str = "") -> None:
    """A server of processes with a nearly full sandbox, and one that two sessions share and whose breaker is open."""
    at = datetime(2030, 3, 17, 17, 0, tzinfo=UTC).timestamp()
    same: dict[str, Any] = {"toolbox": "toolbox-0.1", "server": "shop", "kind": "process", "started_at": at}
    same |= {"measured_at": at, "memory_limit_bytes": 256 << 20, "processes": 2, "open_files": 9, "calls": 4}
    boxes = [
        SandboxRow(
            id="toolbox-0.1/shop-1", state="session", sessions=1, session=RECORD, doing=("lookup",),
            memory_bytes=240 << 20, memory_share=0.94, cpu_percent=97.0, **same,
        ),
        SandboxRow(id="toolbox-0.1/shop-2", state="idle", purpose=text, memory_bytes=30 << 20, **same),
        SandboxRow(id="toolbox-0.1/shop-3", state="shared", sessions=2, memory_bytes=30 << 20, **same),
    ]  # fmt: skip
    sessions = [
        ToolSessionRow(
            id=f"{RECORD[:-1]}{number}{text}", toolbox="toolbox-0.1", servers=("shop",),
            sandboxes=("toolbox-0.1/shop-3",), opened_at=at, calls=3, running=(f"{RECORD}/0.0",) * number,
        )
        for number in (0, 1)
    ]  # fmt: skip
    servers = [
        ToolServerRow(
            id="shop", toolbox="toolbox-0.1", session="process", state="serving", version=f"shop 2{text}", tools=2,
            sandbox="in a process sandbox", sandboxes=3, sessions=3, running=1, calls=812, failed=3, died=1,
            memory_bytes=300 << 20, memory_share=0.94, cpu_percent=98.0,
        ),
        ToolServerRow(
            id="search", toolbox="toolbox-0.1", session="shared", state="serving", breaker="open",
            last_failure=f"it took longer than 20 s {text}", calls=40, failed=31,
        ),
    ]  # fmt: skip
    tool = {"toolbox": "toolbox-0.1", "server": "shop"}
    tools = [
        ToolRow(id="shop.lookup", name="lookup", description=f"Look up a price. {text}", calls=800, failed=3, errors=11,
                p50_s=0.02, p95_s=1.5, **tool),
        ToolRow(id="shop.order", name="order", effect="outside", **tool),
    ]  # fmt: skip
    line = ToolLogLine(7, at, "toolbox-0.1", "toolbox-0.1/shop-1", f"listening {text}")
    coordinator.answers["tool_logs"] = lambda _: JoinedRows([line])
    for name, rows in (("tool_servers", servers), ("tools", tools), ("sandboxes", boxes), ("tool_sessions", sessions)):
        coordinator.answers[f"list_{name}"] = lambda _, rows=rows: JoinedRows(rows)


def evaluation_rows(coordinator: Scripted, text: str = "") -> None:
    """One under way, the best, and one on other tasks."""
    at = datetime(2030, 3, 17, 17, 0, tzinfo=UTC).timestamp()
    same: dict[str, Any] = {"environment": f"shop{text}", "at": at, "tasks": 64}
    done = same | {"state": "done", "ended": 64, "attempts": 256, "on": "b2", "margin": 0.081, "turns": 2.25}
    rows = [
        EvaluationRow(21, state="wanted", environment="", at=at, step=210),
        EvaluationRow(20, state="queued", step=200, ended=40, attempts=160, failed=3, mean=0.55, margin=0.09, **same),
        EvaluationRow(
            19, step=190, mean=0.61, passed={"1": 0.61, "4": 0.79}, checkpoint=f"step-190{text}", is_best=True, **done
        ),
        EvaluationRow(18, step=180, mean=0.33, passed={"1": 0.33, "4": 0.56}, **(done | {"on": "a1"})),
    ]  # fmt: skip

    def story(args: ShowEvaluation) -> EvaluationStory:
        shown = next(row for row in rows if row.version == args.version)
        return EvaluationStory((shown,), tuple(_evaluated(n, args.version, text) for n in range(12)))

    coordinator.answers["list_evaluations"] = lambda args: rows
    coordinator.answers["show_evaluation"] = story


def _evaluated(number: int, version: int, text: str) -> Attempt:
    failed = number == 11
    score = None if failed else float(number % 4 < version - 17)
    record = f"shop/eval/{version}/{number:06d}#r1.s0.a1"
    return Attempt(
        key=record, record=record, model=f"v{version}", attempt=0, environment="shop", task=f"row-{number}{text}",
        content=f"c{number}", query=f"what does item {number} cost?{text}", score=score,
        outcome="engine_died" if failed else "answered", error=f"it is gone{text}" if failed else "",
        tags=("fruit" if number % 3 else "bread",), difficulty="hard" if number > 7 else "easy",
        tokens=61, turn_count=2, took_s=1.25,
    )  # fmt: skip


def other_model_rows(coordinator: Scripted, text: str = "") -> None:
    """A judge whose first service rests, a user model, and one that was not asked yet."""
    at = datetime(2030, 3, 17, 17, 40, tzinfo=UTC).timestamp()
    used = {"calls": 1840, "kept": 310, "unanswered": 4, "tries": 1911, "tokens_in": 912000, "tokens_out": 40100}
    judge = used | {"model": "judge", "purpose": f"judge right{text}", "cost": 2.681, "latency_s": 1.25, "last_at": at}
    user = {"model": "user", "purpose": "user", "calls": 90, "tries": 90, "tokens_in": 8100, "cost": 0.0, "last_at": at}
    away = {"failing_at": ("sampler-0", "sampler-1"), "failures": 7, "error": f"status 503: busy{text}"}
    away |= {"failed_at": at + 360, "rests_until": at + 420}
    limit = {"per_minute": 60, "at_once": 16, "timeout_s": 60.0}
    services = (
        ServiceRow("judge", 1, f"large at api.example.com{text}", **limit, price_in=2.5, price_out=10.0, **away),
        ServiceRow("judge", 2, "also-large at other.example.com", this_minute=42, **limit),
        ServiceRow("user", 1, "mine at 127.0.0.1:30000", at_once=16, timeout_s=60.0),
        ServiceRow("reader", 1, "mine at 127.0.0.1:30000", at_once=16, timeout_s=60.0),
    )
    calls = tuple(
        {"at": at - 5 * number, "record": RECORD, "purpose": "judge right", "model": "judge", "tries": 1 + 2 * number,
         "outcome": "away" if number == 1 else "ok", "latency_s": 1.2, "service": "also-large at other.example.com",
         "error": f"large at api.example.com: status 503: busy{text}" if number == 1 else ""}
        for number in range(3)
    )  # fmt: skip
    by = {"judge": ("judge right",), "reader": ("summaries (off)",)}
    coordinator.answers["other_models"] = lambda _: OtherModelsReport((judge, user), calls, services, by, at + 360)


def _stored(coordinator: Scripted, text: str) -> None:
    """Tasks, checkpoints and keys."""
    at = datetime(2030, 3, 17, 17, 0, tzinfo=UTC)
    task = {"id": "shop/train/0/000012", "status": "dead", "purpose": text or "train", "round": 1, "admitted_at": at}
    task |= {
        "reason": f"stale {text}",
        "query": f"what does it cost {text}",
        "answer": text,
        "n": 4,
        "trained_count": 0,
    }
    saved = {"id": "step-9", "status": "complete", "step": 9, "version": 4, "at": at, "pinned": True}
    saved |= {"path": f"checkpoints/9{text}"}
    files = {f"model {text}": {"bytes": 9 << 20}}
    coordinator.answers["list_tasks"] = lambda _: data_commands.Page((task,))
    coordinator.answers["list_checkpoints"] = lambda _: data_commands.Page((saved,))
    _replays(coordinator, text, at)
    coordinator.answers["show_task"] = lambda _: data_commands.Story(task, (row(RECORD, error=text),), 3)
    coordinator.answers["show_checkpoint"] = lambda _: data_commands.Story(saved | {"files": files})
    key = control_commands.KeyRow(f"ann{text}", "p" * 40, Permission.VIEWER, at.timestamp())
    coordinator.answers["list_keys"] = lambda _: [key]
