"""Tool calls of episodes, with a real toolbox and a server that misbehaves when it is asked to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, mcp_attributes

from agentrl.chat.tool_call_parsers import Call
from agentrl.config.data_plane import Rollout
from agentrl.config.tracing import Tracing
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.scorers import UnscoredError
from agentrl.rollout.tool_calls import RETRY_S, offer
from agentrl.steward import dead_owners
from agentrl.store.documents import Record
from agentrl.tokens.binary_format import unpack_ids
from agentrl.toolbox.api_messages import (
    BadRequestError,
    CallAnswer,
    Opened,
    QuotaError,
    SessionLostError,
    ToolboxError,
    ToolboxGoneError,
    ToolInfo,
    UnavailableError,
)
from agentrl.tracing import otlp_export, trace_context
from tests.rollout import conftest
from tests.rollout.actors import Prompt
from tests.rollout.conftest import Stage, configuration, unruly_tools
from tests.tracing.receiver import receiving
from tests.waiting import aeventually


def calls(*written: str) -> str:
    return "".join(f"<tool_call>{one}</tool_call>" for one in written)


def first(reply: str, then: str = "<answer>3</answer>") -> Any:
    """A model that says `reply` in the first turn and `then` in later ones."""
    return lambda prompt: reply if len(prompt.answers) == 1 else then


async def ready(stage: Stage, **settings: Any) -> None:
    stage.config = configuration(**unruly_tools(**settings))
    await stage.toolbox()


async def test_calls_of_a_turn_run_side_by_side_and_answer_in_their_order(stage: Stage, tmp_path: Path) -> None:
    await ready(stage)
    path, beside = tmp_path / "notes", tmp_path / "beside"
    slow, quick = f"note(path={str(path)!r}, until={str(beside)!r})", f"note(path={str(beside)!r})"
    engine = await stage.engine(first(calls(slow, quick, "echo(text='pear')")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns, record.score) == ("answered", 2, 1.0)
    assert engine.prompts[1].answers[1:] == ["noted", "noted", "pear"]
    assert [each.read_text().split() for each in (path, beside)] == [["begun", "ended"]] * 2, "one needs the other"
    stored = await stage.tool_calls()
    assert [(call.id.rpartition("/")[2], call.status, call.result) for call in stored] == [
        ("000.0", "ok", "noted"),
        ("000.1", "ok", "noted"),
        ("000.2", "ok", "pear"),
    ]
    assert (await stage.turns())[0].tool_calls == stored
    before, after = await stage.calls()
    assert after.base == before.id
    assert after.base_length == len(engine.prompts[0].ids) + len(unpack_ids(before.output))


async def test_an_episode_is_one_trace_of_sampler_and_toolbox_without_what_they_wrote(stage: Stage) -> None:
    await ready(stage)
    await stage.engine(first(calls("echo(text='pear')", "trace()")))
    await stage.task(n=1)
    with receiving() as receiver:
        stop = otlp_export.start(receiver.url, {}, "sampler", {})
        spans_of_all = stage.config.model_copy(update={"tracing": Tracing(endpoint=receiver.url, episodes=1.0)})
        stage.config = spans_of_all
        async with stage.sampler():
            record = await stage.one()
        stop()
    root = receiver.spans["invoke_agent tool_agent"]
    assert root.trace_id.hex() == trace_context.of_record("", record.id).trace_id
    tool, ran = (receiver.spans[f"{what} faulty.echo"] for what in ("execute_tool", "run"))
    assert {span.trace_id for span in receiver.all} == {root.trace_id}
    assert (tool.parent_span_id, ran.parent_span_id) == (root.span_id, tool.span_id), "through the header of the call"
    sent = receiver.spans["tools/call trace"]
    assert sent.parent_span_id == receiver.spans["run faulty.trace"].span_id
    told = next(call.result for call in await stage.tool_calls() if call.tool == "trace")
    assert told.split()[0] == f"00-{root.trace_id.hex()}-{sent.span_id.hex()}-01", "the server knows the call's span"
    assert receiver.attributes("invoke_agent tool_agent")["agentrl.outcome"] == "answered"
    assert receiver.attributes("execute_tool faulty.echo")["gen_ai.operation.name"] == "execute_tool"
    completions = [span for span in receiver.all if span.name == "text_completion"]
    assert len(completions) == 2
    assert receiver.attributes("text_completion")["gen_ai.usage.output_tokens"] > 0
    used = {each.key for span in receiver.all for each in span.attributes}
    known = [*vars(gen_ai_attributes).values(), *vars(mcp_attributes).values(), "error.type"]
    assert all(name in known for name in used if not name.startswith("agentrl.")), "conventions have these names"
    assert not any(b"pear" in span.SerializeToString() for span in receiver.all)


@register_loop("calls_apart")
class CallsApart(AgentLoop):
    """Calls its tools first one after another, then in tasks of their own."""

    async def run(self, episode: Episode) -> Outcome:
        reply = await episode.model(episode.first_prompt())
        one, two, *more = reply.parsed.calls
        results = [*await episode.call_tools([one]), *await episode.call_tools([two])]
        for each in await asyncio.gather(*(episode.call_tools([call]) for call in more)):
            results += each
        assert results == ["a", "b", "c", "d"]
        return Outcome.ANSWERED


async def test_calls_of_a_turn_that_are_made_apart_have_results_of_their_own(stage: Stage) -> None:
    await ready(stage)
    await stage.engine(lambda prompt: calls(*(f"echo(text='{text}')" for text in "abcd")))
    await stage.task(n=1, agent_name="calls_apart", answer_schema="")
    async with stage.sampler():
        record = await stage.one()
    assert record.outcome == "answered", record.error
    stored = [(call.id.rpartition("/")[2], call.result) for call in await stage.tool_calls()]
    assert sorted(stored) == [("000.0", "a"), ("000.1", "b"), ("000.2", "c"), ("000.3", "d")]


LARGE = "x" * 300_000
"""More than a document keeps of a result."""


@register_loop("scores_state")
class ScoresState(AgentLoop):
    """Reads the state of its session at the end, and scores by it; the scorer is away at first."""

    away = True

    async def run(self, episode: Episode) -> Outcome:
        reply = await episode.model(episode.first_prompt())
        await episode.call_tools(reply.parsed.calls)
        await episode.call_tools([Call("count"), Call("echo", {"text": LARGE})])
        return self.ending(reply.text, episode.task)

    async def evaluate_record(self, episode: EndedEpisode) -> float:  # type: ignore[override]
        assert (episode.outcome, episode.task.answer) == ("answered", "3")
        assert episode.texts == [calls("count()", "count()") + "<answer>3</answer>"]
        *_, state, large = episode.tool_calls
        assert (large.tool, large.arguments, large.result) == ("echo", {"text": LARGE}, LARGE)
        if ScoresState.away:
            raise UnscoredError("the judge is away")
        return float(state.result.split()[2])


@pytest.mark.parametrize("away", [False, True], ids=["when it ends", "by another sampler"])
async def test_a_loop_scores_the_state_of_the_environment_by_stored_tool_calls(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    ScoresState.away = away
    await ready(stage, result_max_chars=500_000)
    await stage.engine(lambda prompt: calls("count()", "count()") + "<answer>3</answer>")
    await stage.task(n=1, agent_name="scores_state")
    async with stage.sampler("sampler-0.1"):
        record = await stage.one()
    if away:
        assert (record.status, "the judge is away" in record.error) == ("unscored", True)
        await dead_owners.expire(stage.db)
        ScoresState.away = False
        async with stage.sampler("sampler-1.1"):
            (record,) = await aeventually(lambda: stage.all(Record, status="scored"), what="it is scored")
    assert (record.status, record.score) == ("scored", 3.0)


async def test_the_session_is_the_episodes_own_and_ends_with_it(stage: Stage) -> None:
    stage.config = configuration(**unruly_tools())
    toolbox = await stage.toolbox()
    engine = await stage.engine(lambda prompt: calls("count()") if len(prompt.answers) < 3 else "<answer>3</answer>")
    await stage.task(n=2)
    async with stage.sampler():
        await stage.ended(count=2)
    last = [prompt.answers[1:] for prompt in engine.prompts if len(prompt.answers) == 3]
    assert [[reply.split()[2] for reply in answers] for answers in last] == [["1", "2"], ["1", "2"]]
    await aeventually(lambda: toolbox.open_sessions == 0, what="sessions are closed")


@pytest.mark.parametrize(
    ("call", "settings", "outcome", "status", "fault"),
    [
        ("refuse(text='no such thing')", {}, "answered", "tool_error", "policy"),
        ("lookup(pear)", {}, "answered", "refused", "policy"),
        ("fail()", {}, "tool_server_failed", "lost", "infrastructure"),
        ("excuse()", {}, "tool_server_failed", "tool_error", "infrastructure"),
        ("die(words='bye')", {}, "tool_server_failed", "lost", "infrastructure"),
        ("die(words='bye')", {"crash_means": "policy"}, "tool_failure", "lost", "policy"),
        ("note(path='/dev/null', seconds=60)", {"timeout_s": 1}, "tool_timeout", "timeout", "infrastructure"),
        ("note(path='/dev/null', seconds=60)", {"timeout_s": 1, "timeout_means": "policy"}, "answered", "timeout",
         "policy"),
    ],
    ids=["mistake", "unknown", "error", "excuse", "crash", "crash of the policy", "timeout", "timeout of the policy"],
)  # fmt: skip
async def test_the_cause_of_a_failed_call_decides_the_end_of_the_episode(
    stage: Stage, call: str, settings: dict[str, Any], outcome: str, status: str, fault: str
) -> None:
    await ready(stage, **settings)
    await stage.engine(first(calls(call)))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.status) == (
        outcome,
        "failed" if fault == "infrastructure" else "scored",
    )
    made = await stage.tool_calls()
    assert [(one.status, one.error_class) for one in made] == [(status, fault)]
    assert not await stage.open_ends()
    # A failure that the policy did not cause is never shown to the model.
    wanted = await stage.calls()
    assert len(wanted) == (2 if outcome == "answered" else 1)
    tokens = sum(len(unpack_ids(call.output)) for call in wanted)
    assert (record.turns, record.generated_tokens, record.versions) == (len(wanted), tokens, [1]), (
        "also where it failed"
    )


async def test_a_call_that_was_made_twice_is_stored_with_both_ends(stage: Stage) -> None:
    await ready(stage, try_again=True)
    await stage.engine(first(calls("fail()")))
    await stage.task(n=1)
    async with stage.sampler():
        await stage.one()
    assert [(one.status, one.error_class, one.tried_again) for one in await stage.tool_calls()] == [
        ("lost", "infrastructure", "lost")
    ]


async def test_malformed_calls_get_an_error_and_end_the_episode_if_repeated(stage: Stage) -> None:
    def says(prompt: Prompt) -> str:
        assert "Malformed tool call" in prompt.text or len(prompt.answers) == 1
        return calls("look(") + "!" * len(prompt.answers)

    await stage.engine(says)
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.outcome_class, record.turns) == ("invalid_call_limit", "limit", 4)
    assert [turn.parsed[0].error != "" for turn in await stage.turns()] == [True] * 4


async def test_a_malformed_call_is_counted_even_if_the_next_one_is_valid(stage: Stage) -> None:
    await stage.engine(first(calls("look(")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.malformed) == ("answered", True)


async def test_repeating_the_same_text_is_repetition(stage: Stage) -> None:
    await ready(stage)
    await stage.engine(lambda prompt: calls("echo(text='x')"))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns) == ("repetition", 3)


async def test_a_result_of_megabytes_keeps_its_ends(stage: Stage) -> None:
    await ready(stage, result_max_chars=100)
    engine = await stage.engine(first(calls("big(chars=5000000)")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert record.outcome == "answered"
    seen = engine.prompts[1].answers[1]
    assert len(seen) < 300
    assert seen.startswith("<x")
    assert seen.endswith("x>")


REFUSALS: dict[str, type[ToolboxError]] = {
    "invalid": BadRequestError,
    "session_lost": SessionLostError,
    "quota": QuotaError,
    "unavailable": UnavailableError,
    "gone": ToolboxGoneError,
}


class RefusingToolbox:
    """A toolbox that refuses this many times before it carries out a request."""

    def __init__(self, kind: Any, times: int) -> None:
        self.kind = kind
        self.left = times
        self.opened: list[str] = []

    def refuse(self) -> None:
        if self.left:
            self.left -= 1
            raise REFUSALS[self.kind]("not now", retry_after_s=0.1)

    async def tools(self) -> Sequence[ToolInfo]:
        return [ToolInfo(server="faulty", name="echo", schema={"properties": {"text": {"type": "string"}}})]

    async def open(self, session: str, servers: Sequence[str], *, wait_s: float) -> Opened:
        self.opened.append(session)
        return Opened(id=session, servers=tuple(servers), created=True)

    async def call(
        self, session: str, call: str, server: str, tool: str, arguments: dict[str, Any], *, timeout_s: float
    ) -> CallAnswer:
        self.refuse()
        return CallAnswer(status="ok", content=str(arguments["text"]))

    async def close(self, session: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "times", "outcome", "episode_s"),
    [
        ("unavailable", 3, "answered", 3.0),
        ("quota", 3, "answered", 3.0),
        ("gone", 3, "answered", 3.0),
        ("session_lost", 2, "tool_server_failed", 60.0),
        ("invalid", 2, "answered", 60.0),
    ],
)
async def test_a_refused_request_is_repeated_where_that_helps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: Any, times: int, outcome: str, episode_s: float
) -> None:
    """Waiting for a breaker, a free place or a toolbox does not count as time of the episode: the first cases take
    longer than the deadline."""
    waited_s = sum(RETRY_S * 2**again for again in range(times))
    assert (waited_s > episode_s) is (kind in ("unavailable", "quota", "gone"))
    moody = RefusingToolbox(kind, times)
    monkeypatch.setattr(conftest, "SamplerToolbox", lambda url, token: moody)
    stage.config = configuration(**unruly_tools())
    await stage.register("toolbox", "toolbox-0", "http://127.0.0.1:9", names=["faulty"])
    await stage.engine(first(calls("echo(text='pear')")))
    await stage.task(n=1)
    async with stage.sampler(settings=Rollout(call_s=20, episode_s=episode_s)):
        record = await stage.one()
    assert record.outcome == outcome, record.error
    assert [call.result for call in await stage.tool_calls()] == [
        {"answered": "pear", "tool_server_failed": "not now"}[outcome] if kind != "invalid" else "not now"
    ]


class ReplacedToolbox(RefusingToolbox):
    """A toolbox that is lost after these refusals. The toolbox that replaces it does not know the session."""

    def __init__(self, *kinds: Any) -> None:
        super().__init__("", 0)
        self.kinds = list(kinds)
        self.ran = 0

    async def call(self, *place: Any, **options: Any) -> CallAnswer:
        if self.kinds:
            raise REFUSALS[self.kinds.pop(0)]("not now", retry_after_s=0.1)
        self.ran += 1
        return CallAnswer(status="ok", content="pear")


@pytest.mark.parametrize(
    ("kinds", "outcome", "ran"),
    [
        (["session_lost"], "answered", 1),
        (["quota", "session_lost"], "answered", 1),
        (["gone", "session_lost"], "tool_server_failed", 0),
    ],
    ids=["never sent", "never taken", "maybe run"],
)
async def test_a_call_that_may_have_run_in_a_lost_toolbox_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kinds: list[str], outcome: str, ran: int
) -> None:
    """This also holds for sessions without state, because an effect outside may be harmful if it happens twice."""
    toolbox = ReplacedToolbox(*kinds)
    monkeypatch.setattr(conftest, "SamplerToolbox", lambda url, token: toolbox)
    stage.config = configuration(**unruly_tools(session="shared"))
    await stage.register("toolbox", "toolbox-0", "http://127.0.0.1:9", names=["faulty"])
    await stage.engine(first(calls("echo(text='pear')")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, toolbox.ran) == (outcome, ran), record.error
    assert [call.status for call in await stage.tool_calls()] == ["ok" if ran else "lost"]


class ToolboxWithUnknownCall(RefusingToolbox):
    """A toolbox whose session has run a call that no record contains."""

    async def open(self, session: str, servers: Sequence[str], *, wait_s: float) -> Opened:
        return Opened(id=session, servers=tuple(servers), created=False, calls=(f"{session}/000.0",))


@pytest.mark.parametrize(("session", "outcome"), [("keyed", "tool_server_failed"), ("shared", "answered")])
async def test_state_that_an_unknown_call_may_have_changed_is_not_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, session: str, outcome: str
) -> None:
    """Such a call exists if a sampler dies between a call that is safe to repeat and its write."""
    toolbox = ToolboxWithUnknownCall("", 0)
    monkeypatch.setattr(conftest, "SamplerToolbox", lambda url, token: toolbox)
    stage.config = configuration(**unruly_tools(session=session, try_again=True))
    await stage.register("toolbox", "toolbox-0", "http://127.0.0.1:9", names=["faulty"])
    await stage.engine(first(calls("echo(text='pear')")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert record.outcome == outcome, record.error


@pytest.mark.parametrize(("repeatable", "stored"), [(False, ["requested"]), (True, [])])
async def test_a_call_is_durable_before_it_is_sent_unless_its_server_may_run_it_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, repeatable: bool, stored: list[str]
) -> None:
    seen: list[list[str]] = []

    class Looking(RefusingToolbox):
        async def call(self, *place: Any, **options: Any) -> CallAnswer:
            seen.append([call.status for call in await stage.tool_calls()])
            return CallAnswer(status="ok", content="pear")

    toolbox = Looking("", 0)
    monkeypatch.setattr(conftest, "SamplerToolbox", lambda url, token: toolbox)
    stage.config = configuration(**unruly_tools(try_again=repeatable))
    await stage.register("toolbox", "toolbox-0", "http://127.0.0.1:9", names=["faulty"])
    await stage.engine(first(calls("echo(text='pear')")))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, seen) == ("answered", [stored])
    assert [call.status for call in await stage.tool_calls()] == ["ok"]


def test_tools_of_the_same_name_are_told_apart_by_their_server() -> None:
    named = (("a", "x"), ("b", "x"), ("b", "y"), ("b", "agentrl_state"), ("c", "z"))
    tools = [ToolInfo(server=server, name=name) for server, name in named]
    offered = offer(tools, ["a", "b"])
    assert [spec.name for spec in offered.specs] == ["a.x", "b.x", "y"]
    assert offered.places["y"] == offered.places["b.y"] == ("b", "y")
    assert "x" not in offered.places
    assert not {"z", "agentrl_state", "b.agentrl_state"} & offered.places.keys()
    assert offered.hidden == {"b.agentrl_state": ("b", "agentrl_state")}


async def test_nothing_is_claimed_while_no_toolbox_has_the_tools(stage: Stage) -> None:
    stage.config = configuration(**unruly_tools())
    await stage.engine(first(calls("echo(text='x')")))
    await stage.task(n=1)
    async with stage.sampler() as sampler:
        await aeventually(lambda: "toolbox" in sampler.idle_because)
        assert sampler.running == 0
        assert (sampler.idle_because, "toolbox") in stage.waits, "the sampler reports that it waits for a toolbox"
        await stage.toolbox()
        record = await stage.one()
    assert record.outcome == "answered"
