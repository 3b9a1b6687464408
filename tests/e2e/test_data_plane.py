"""The whole data plane: a trainer learns from records of real samplers, and a restarted run continues."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.http_token import TOKEN_FILE
from agentrl.store import accounting, run_database
from agentrl.store.database import Database
from tests.e2e import onscreen
from tests.e2e.running import Run, running
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

BOUND, STEPS = 2, 4
UP_WITHIN_S = 400.0
pytestmark = [
    pytest.mark.slow,
    # Half a minute on an idle machine; on a busy one, six processes start torch.
    pytest.mark.timeout(1200),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    # The default times, because libraries of this size start slowly on a busy machine.
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


def test_run_learns_and_continues_after_down_and_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(run.file.parent)
    run.config |= data_plane(steps=STEPS, bound=BOUND)
    up(run)
    watched = [row["step"] for row in run.client.watch("reward_mean")]
    assert watched == [1, 2, 3, 4][-len(watched) :], "each step once, until the run is finished"
    run.wait_state("trainer-0", "stopped", within_s=UP_WITHIN_S)
    assert set(run.incarnations().values()) == {1}, "nothing died"

    first = asyncio.run(look(run))
    committed = [step for step in first["Step"] if step["status"] == "committed"]
    assert [step["step"] for step in committed] == [1, 2, 3, 4]
    trained = [step for step in committed if step["records"]]
    assert trained, "some groups have right and wrong answers"
    mismatches = [step["metrics"]["mismatch_max"] for step in trained if "mismatch_max" in step["metrics"]]
    assert mismatches, "some tokens are of the version that their step begins from"
    assert max(mismatches) < 1e-3, "the trainer computes the log-probs of the engine"
    assert max(step["metrics"]["age_max"] for step in trained) <= BOUND
    assert no_record_is_too_old(first)
    assert is_served(run, first)
    assert only_with_the_token(first)
    evaluated = {task["version"] for task in first["Task"] if task["purpose"] == "eval"}
    versions = [publication["_id"] for publication in first["Publication"]]
    assert evaluated == {min(versions), max(versions)}, "the first and the last version are evaluated"
    assert all(task["status"] == "done" for task in first["Task"] if task["purpose"] == "eval")
    assert not first["problems"]
    before = counted(run)
    assert from_a_metric_to_the_records_behind_it(run)
    notebook(run, monkeypatch)

    proof = run.cli("down", "--yes", within_s=120)
    assert proof["proven"]
    assert not proof["left"]

    # The next trainer starts at the last checkpoint, and numbers are never reused. Steps without records save none.
    run.config["training"]["steps"] = STEPS + 2
    up(run)
    run.wait_state("trainer-0", "stopped", within_s=UP_WITHIN_S)
    second = asyncio.run(look(run))
    assert [step["step"] for step in second["Step"] if step["status"] == "committed"] == [1, 2, 3, 4, 5, 6]
    older, newer = second["Lineage"]
    assert newer["parent_checkpoint"].startswith(f"step-{trained[-1]['step']:06d}.")
    assert older["closed"]
    assert newer["first_version"] > max(versions)
    by_number = {publication["_id"]: publication for publication in second["Publication"]}
    assert by_number[newer["first_version"]]["parent"] == max(versions)
    assert no_record_is_too_old(second)
    assert not second["problems"]
    after = counted(run)
    onscreen.live(run, ("7", "A"), "All sums agree.", f"steps: {STEPS + 2} committed")
    onscreen.live(run, ("8", "home", "enter"), f"/{STEPS + 2:06d}", "metrics", once="committed")
    both = f"v{min(versions)}", f"v{max(versions)}"
    listed = {f"v{row['version']}": row for row in run.cli("eval", "list")}
    assert [(listed[one]["state"], listed[one]["tasks"], listed[one]["attempts"]) for one in both] == [
        ("done", 4, 4)
    ] * 2
    (compared,) = run.cli("eval", "compare", *both)["parts"]
    assert compared["tasks"] == 4
    onscreen.live(run, ("8", "V"), *both, f"{len(listed)} evaluations")
    assert after["tasks"]["train"].keys() >= {"trained"}
    # Steps without records at the end are in no checkpoint, so they are done again.
    empty = STEPS - trained[-1]["step"]
    again = {"rolled_back": empty} if empty else {}
    assert after["steps"] == {"committed": STEPS + 2} | again, "no step was lost or repeated"
    assert after["trained_records"] >= before["trained_records"]


def test_killed_sampler_loses_no_record(run: Run) -> None:
    write_data(run.file.parent)
    run.config |= data_plane(steps=12)
    up(run)
    before = run.unit_row("sampler-0")
    eventually(lambda: asyncio.run(sampled(run)) >= 20 or None, within_s=UP_WITHIN_S, what="episodes")
    run.kill(before.pid)
    life = f"sampler-0.{before.incarnation}"
    eventually(lambda: asyncio.run(freed(run, life)), what="its records to be free long before its lease ends")
    run.wait_incarnation("sampler-0", above=before.incarnation)
    run.wait_state("trainer-0", "stopped", within_s=UP_WITHIN_S)
    found = asyncio.run(look(run))
    assert [step["step"] for step in found["Step"] if step["status"] == "committed"] == list(range(1, 13))
    assert any(record["owner"] == f"sampler-0.{before.incarnation + 1}" for record in found["Record"])
    # Attempts of the dead sampler were repeated, and count in no baseline.
    left = {record["_id"] for record in found["Record"] if record["status"] in ("failed", "abandoned")}
    closed = [task for task in found["Task"] if task["baseline"]]
    assert closed
    assert not left & {share["record"] for task in closed for share in task["shares"]}
    assert not found["problems"]


def notebook(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippets of docs/python.md for notebooks."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text().partition("\n## Notebooks")[2]
    known: dict[str, Any] = {"__name__": "snippet"}
    with monkeypatch.context() as here:
        here.setenv("AGENTRL_HOME", str(run.home))
        here.chdir(run.file.parent)
        for number, snippet in enumerate(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL), 1):
            exec(compile(snippet, f"python.md, snippet {number} for notebooks", "exec"), known)
        assert "Turn 0" in Path("odd.html").read_text()
        assert json.loads(Path("odd.json").read_text())["traceEvents"]
    assert list(known["metrics"].index) == [1, 2, 3, 4]
    assert "reward_mean" in known["metrics"].columns
    assert set(known["records"]["status"]) == {"scored"}
    assert known["table"].num_rows >= len(known["records"])
    assert "iframe" in known["odd"]._repr_html_()
    assert len(known["newest_metrics"]) == 4


def counted(run: Run) -> Any:
    """The account of the command line; its exit code shows that all sums agree."""
    return run.cli("accounting")


def from_a_metric_to_the_records_behind_it(run: Run) -> bool:
    """The commands of an operator: the step of a peak, its records, one of them turn by turn, whole trajectories."""
    (worst, *_) = run.cli("steps", "list", "--filter", "status=committed", "--sort", "-metrics.loss")["rows"]
    step = run.cli("steps", "show", worst["id"])
    assert len(step["records"]) == worst["counts"]["records"] > 0
    record = run.cli("records", "show", step["records"][0]["id"])
    assert record["training"]["trained_in"] == [worst["id"]]
    assert record["ending"]["class"] in ("policy", "limit")
    for turn in record["turns"]:
        assert turn["call"]["versions"], "every call says which version made it"
        assert turn["call"]["seconds"] > 0
    tokens = run.cli("records", "show", step["records"][0]["id"], "--tokens")
    assert tokens["note"] == ""
    generated = [each for each in tokens["segments"] if each["kind"] == "model"]
    assert sum(len(each["ids"]) for each in generated if each["trains"]) == record["training"]["trained_tokens"]
    for turn in record["turns"]:
        (output,) = [each for each in generated if each["turn"] == turn["index"]]
        assert turn["text"].strip() in "".join(output["texts"]), "the text of a turn is that of its tokens"
        assert len(output["log_probs"]) == len(output["texts"]) == sum(count for _, count in output["versions"])
    exported = run.raw("records", "export", "--filter", f"task={record['task']['id']}")
    trajectories = [json.loads(line) for line in exported.stdout.splitlines()]
    assert record["record"]["id"] in {one["record"]["id"] for one in trajectories}
    first = run.raw("records", "export", "--filter", f"task={record['task']['id']}", "--limit", "1")
    assert (len(trajectories) > 1, first.stdout.splitlines()) == (True, exported.stdout.splitlines()[:1])
    ended = run.cli("records", "list", "--filter", "finished_at!=null", "--limit", "1000")["rows"]
    assert all(row["outcome"] and row["outcome_class"] for row in ended), "each has one reason why it ended"
    onscreen.live(run, ("7",), "scored", ended[0]["outcome"])
    onscreen.live(run, ("7", "enter"), "turn 0  v", "×", " at engine-0", "on sampler-0.1", once="scored")
    return True


async def freed(run: Run, life: str) -> bool:
    """Whether the death was noticed, and the owner holds no record any more."""
    database = await opened(run)
    try:
        owner = await database.find_one("Owner", {"_id": life})
        held = await database.count("Record", {"owner": life, "status": "running"})
    finally:
        await database.close()
    return owner is not None and owner["why"] == "its death was confirmed" and not held


# ---- the run ----


def up(run: Run) -> None:
    run.write()
    run.cli("up", str(run.file), "--yes", within_s=UP_WITHIN_S)


# ---- what the store contains ----


def no_record_is_too_old(found: dict[str, Any]) -> bool:
    """Versions of one lineage are consecutive. Between two lineages, a step starts at the first version of the newer
    one.
    """
    data = {one["_id"]: one for one in found["DBRecordData"]}
    first = {lineage["_id"]: lineage["first_version"] for lineage in found["Lineage"]}
    for step in found["Step"]:
        for name in step["records"] if step["status"] == "committed" else ():
            oldest = max(data[name]["oldest_version"], first[step["lineage"]] - 1)
            assert step["base_version"] - oldest <= BOUND, f"{name} in {step['_id']}"
    return True


def is_served(run: Run, found: dict[str, Any]) -> bool:
    """The engine answers with the newest version."""
    newest = max(publication["_id"] for publication in found["Publication"])
    (engine,) = (
        service for service in found["Service"] if service["kind"] == "engine" and service["state"] == "serving"
    )
    token = (run.state_dir / TOKEN_FILE).read_text().strip()
    wanted = urllib.request.Request(f"{engine['url']}/model_info", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(wanted, timeout=60) as answer:
        assert json.load(answer)["weight_version"] == str(newest)
    (publication,) = (one for one in found["Publication"] if one["_id"] == newest)
    assert publication["status"] == "current"
    assert engine["_id"] in publication["served_by"]
    return True


def only_with_the_token(found: dict[str, Any]) -> bool:
    alive = [service for service in found["Service"] if service["state"] == "serving"]
    assert {service["kind"] for service in alive} == {"engine", "toolbox"}
    for service in alive:
        path = "/model_info" if service["kind"] == "engine" else "/mcpapi/servers"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{service['url']}{path}", timeout=60)
    return True


KINDS = ("Task", "Record", "DBRecordData", "Step", "Lineage", "Publication", "Service")


async def look(run: Run) -> dict[str, Any]:
    """Compare everything. Returns the differences."""
    database = await opened(run)
    try:
        found: dict[str, Any] = {kind: await database.find(kind, {}, sort=[("_id", 1)]) for kind in KINDS}
        found["problems"] = [problem.sentence() for problem in (await accounting.account(database)).problems]
        return found
    finally:
        await database.close()


async def sampled(run: Run) -> int:
    database = await opened(run)
    try:
        return await database.count("Record", {"status": "scored"})
    finally:
        await database.close()


async def opened(run: Run) -> Database:
    return await run_database.open_database(run_database.configuration(run.dir), run.state_dir)
