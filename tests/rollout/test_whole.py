"""Samplers with everything real: the embedded engine, the demo's tool server, a process of their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.tool_specs import ToolSpec
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_server import build_app
from agentrl.errors import UsageError
from agentrl.http.token_server import listening
from agentrl.policies.outcomes import Outcome
from agentrl.protocol import messages
from agentrl.rollout import agent_loops, chat_format
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.episode import Episode
from agentrl.rollout.sampler_knobs import SamplerKnobs
from agentrl.store import calls as stored_calls
from agentrl.store import publications
from agentrl.store.database import Database
from agentrl.store.documents import Owner, Task
from agentrl.tokens import spans as span_lists
from agentrl.tokens import version_runs as version_runs
from agentrl.tokens.binary_format import unpack_floats, unpack_ids
from agentrl.tokens.token_tree import TokenTree
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import read_environment
from assets import shop_server
from tests.engines import unverified
from tests.rollout.conftest import TOKEN, Stage, configuration
from tests.store.server import NAME
from tests.training import rollouts
from tests.unit.fake_coordinator import Counterpart, Process
from tests.waiting import aeventually


@pytest.fixture
async def embedded(model_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(slots=16, context=1024)
    engine.start()
    await unverified.serve(engine, model_dir, 1)
    yield engine
    await engine.close()


def shop_tools() -> dict[str, Any]:
    environment = {
        "dataset": "none.jsonl",
        "parser": "minicpm",
        "agent": "tool_agent",
        "tools": ["shop"],
        "max_turns": 3,
        "system": "Price the order.",
    }
    server = {"command": "{python} -m assets.shop_server --no-faults", "session": "keyed", "timeout_s": 20}
    return {"tools": {"shop": server}, "environments": {"shop": environment}}


async def test_what_a_real_engine_generated_is_stored_token_by_token(
    stage: Stage, embedded: EmbeddedEngine, model_dir: Path
) -> None:
    """An untrained model ends a turn by chance. Each call is compared with the scores of the engine for its tokens."""
    stage.config = configuration(**shop_tools())
    await stage.toolbox()
    url = await stage.stack.enter_async_context(listening(build_app(embedded, TOKEN)))
    await stage.register("engine", "engine-0", url, version=1, slots=16)
    for _ in range(2):
        await stage.task(n=8, sampling={"max_tokens_per_call": 24})
    async with stage.sampler():
        records = await stage.ended(count=16)
        # A new version in the middle changes nothing about what is stored of the old one.
        await unverified.serve(embedded, model_dir, 2)
    assert {record.status for record in records} == {"scored"}
    assert {record.outcome for record in records} <= {"token_limit", "no_answer", "answered", "turn_limit"}
    by_record = await stored_calls.with_tokens(stage.db, [record.id for record in records])
    data = {one.id: one for one in await stage.data()}
    for record in records:
        calls = by_record[record.id]
        stored = stored_calls.stored_calls(calls)
        prompts = span_lists.full_prompts(stored)
        rebuilt = TokenTree.from_calls((index, prompts[index], call.output) for index, call in stored.items())
        assert rebuilt.spans == data[record.id].spans
        assert data[record.id].trained_tokens == record.generated_tokens == sum(len(c.output) for c in stored.values())
        assert prompts[0] == stage.words.template.first("Price the order.", _tools(), "what costs a pear?")
    for call in (calls[0] for calls in by_record.values()):
        output, seen = unpack_ids(call.output), unpack_floats(call.log_probs)
        scored = await embedded.score(unpack_ids(call.prompt) + output, deadline_s=20)
        assert version_runs.total(call.versions) == len(output)
        assert seen == pytest.approx(scored[-len(output) :], abs=1e-4)
    assert not await stage.open_ends()


def _tools() -> Iterable[Any]:
    return [
        ToolSpec(name=name, description=shop_server.DESCRIPTIONS[name], schema=schema)
        for name, schema in shop_server.TOOLS.items()
    ]


class Rambling(AgentLoop):
    """A loop that continues, whatever the model says, until its conversation is far too long."""

    async def run(self, episode: Episode) -> Outcome:
        prompt = episode.first_prompt()
        for number in range(4):
            reply = await episode.model(prompt, may_be_cut=True)
            prompt = episode.after_user(prompt, reply, f"go on after {number}")
        return Outcome.ANSWERED

    async def evaluate_record(self, texts: Sequence[str], task: Task) -> float:
        return float(len("".join(texts)) % 2)


async def test_a_record_whose_conversation_was_edited_trains_what_the_engine_sampled(
    stage: Stage, embedded: EmbeddedEngine, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer computes the log-probs of all branches again, and they are those of the engine."""
    monkeypatch.setitem(agent_loops._registry, "rambling", Rambling)
    context = {"strategy": "sliding_window", "budget": 70}
    shop = {"dataset": "none.jsonl", "context": context}
    stage.config = configuration(environments={"shop": shop})
    url = await stage.stack.enter_async_context(listening(build_app(embedded, TOKEN)))
    await stage.register("engine", "engine-0", url, version=1, slots=16)
    await stage.task(n=8, agent_name="rambling", sampling={"max_tokens_per_call": 16})
    async with stage.sampler():
        records = await stage.ended(count=8)
    assert {record.outcome for record in records} == {"answered"}
    assert all(record.context["edits"] for record in records)
    await rollouts.trainer(stage.db, rollouts.configuration(tmp_path, model_dir, steps=1, groups=1), tmp_path).run()
    (step,) = await stage.db.find("Step", {"status": "committed"})
    assert set(step["records"]) == {record.id for record in records}
    assert step["metrics"]["mismatch_max"] < 1e-3


# ---- as a unit ----


class Running:
    """A sampler's process over a run directory."""

    def __init__(self, counterpart: Counterpart, url: str) -> None:
        self.counterpart = counterpart
        self.directory = counterpart.directory
        (self.directory / "mongo").mkdir()
        (self.directory / "mongo" / "url").write_text(url)
        config = configuration().model_dump(mode="json", exclude_none=True)
        (self.directory / "config.json").write_text(json.dumps({**config, "name": NAME}))
        (self.directory / "http.token").write_text(TOKEN)
        (self.directory / "http.token").chmod(0o600)
        self.life: Process | None = None

    def start(self) -> Process:
        program = self.directory / "life.py"
        program.write_text(
            "import os, runpy\n"
            f"os.environ['AGENTRL_STATE_DIR'] = {str(self.directory)!r}\n"
            "os.environ['AGENTRL_INCARNATION'] = 'sampler-0.1'\n"
            "os.environ['AGENTRL_GROUP'] = 'sampler'\n"
            "runpy.run_module('daemons.sampler', run_name='__main__', alter_sys=True)\n"
        )
        self.life = Process(self.counterpart, [str(program)])
        return self.life


@pytest.fixture
async def running(mongo_url: str, db: Database) -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory(prefix="sampler-", ignore_cleanup_errors=True) as directory:
        counterpart = Counterpart(Path(directory))
        counterpart.start()
        made = Running(counterpart, mongo_url)
        yield made
        if made.life is not None:
            made.life.close()
        counterpart.close()


async def test_a_sampler_unit_waits_for_weights_works_reports_and_drains(
    running: Running, stage: Stage, model_dir: Path
) -> None:
    counterpart = running.counterpart
    life = running.start()

    def reports(condition: Any) -> Any:
        def look() -> bool:
            assert life.process.poll() is None, life.text()
            return bool(condition(counterpart.report))

        return look

    await aeventually(reports(lambda report: report.ready))
    await aeventually(reports(lambda report: any(wait.on == "trainer-0" for wait in report.waits)))
    assert await stage.db.count("Owner", {"_id": "sampler-0.1", "expired": False}) == 1

    first = await publications.take_number(stage.db, parent=None, lineage="trainer-0.1", step=0)
    (running.directory / first.path).parent.mkdir()
    (running.directory / first.path).symlink_to(model_dir)
    assert await publications.announce(stage.db, first.id, "trainer-0.1", {})
    await stage.engine(lambda prompt: "<answer>3</answer>")
    await stage.task(n=8)
    records = await stage.ended(count=8)
    assert {record.owner for record in records} == {"sampler-0.1"}

    declared = {knob.name: knob for hello in counterpart.of(messages.UnitHello) for knob in hello.declared}
    assert {"concurrency", "max_turns", "call_s", "tool_s", "episode_s", "episode_timeout_means"} <= set(declared)
    assert declared["max_turns"].boundary == "next claim"
    counterpart.tell(messages.SetKnob("concurrency", 0, 1))
    await aeventually(reports(lambda report: report.knobs.get("concurrency") == 0))
    await stage.task(n=2)
    await aeventually(reports(lambda report: "0 of 0 episodes" in report.status))
    counterpart.tell(messages.SetKnob("concurrency", 4, 2))
    await stage.ended(count=10)

    file = running.directory / "config.json"
    services = {"judge": [{"url": "http://127.0.0.1:9/v1", "model": "m"}]}
    (running.directory / "fresh").write_text(json.dumps({**json.loads(file.read_text()), "models": services}))
    (running.directory / "fresh").replace(file)
    await aeventually(lambda: "models of the run file changed" in life.text(), what="the new section")

    counterpart.tell(messages.Drain(grace_s=20))
    assert await life.code() == 0
    assert [owner.expired for owner in await stage.all(Owner)] == [True]


# ---- knobs ----


def test_knobs_preview_what_they_would_do_and_hold_from_their_boundary() -> None:
    unit = Unit(UnitParts(read_environment({}, program="sampler")))
    knobs = SamplerKnobs(unit, configuration())
    assert knobs.take().call_s == 20.0
    unit._knobs.offer("call_s", 5)
    unit._knobs.offer("max_turns", 2)
    assert unit._knobs.in_force()["call_s"] == 20.0
    taken = knobs.take()
    assert (taken.call_s, taken.max_turns) == (5.0, 2)
    seen = unit._knobs.preview("max_turns", 4)
    assert seen.sentence == "max_turns is 4 for episodes claimed from now on; 0 under way keep their own"
    unit._knobs.offer("episode_timeout_means", "infrastructure")
    assert (taken.episode_timeout_means, knobs.take().episode_timeout_means) == ("policy", "infrastructure")
    seen = unit._knobs.preview("episode_timeout_means", "policy")
    assert seen.sentence.startswith("episode_timeout_means is policy for episodes claimed from now on")
    assert "up to 9 more are claimed at once" in unit._knobs.preview("concurrency", 9).sentence
    with pytest.raises(UsageError):
        unit._knobs.offer("concurrency", 1.5)


def test_a_model_without_a_description_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"has no config.json"):
        chat_format.read(tmp_path)
