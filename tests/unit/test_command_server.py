"""A real unit serves commands concurrently, and each command ends with an answer, whatever the handler does."""

from __future__ import annotations

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol import messages, wire
from agentrl.protocol.messages import served_commands
from tests.unit.conftest import Start
from tests.unit.fake_coordinator import Counterpart
from tests.waiting import aeventually

SERVING = """
    import asyncio
    from agentrl.errors import ConflictError
    from agentrl.unit import run_unit

    async def answer(question):
        match question.name:
            case "echo":
                return {"id": question.id, "who": question.who, "dry_run": question.dry_run}
            case "never":
                await asyncio.sleep(1000)
            case "large":
                return b"x" * (5 << 20)
            case "refused":
                raise ConflictError("It is leased.", hint="Wait.")
        raise KeyError("nobody thought of this")

    async def main(unit):
        unit.answer(answer)
        unit.on_death(lambda name: print("died:", name, flush=True))
        unit.ready()
        while await unit.sleep_async(0.05):
            unit.tick()
    run_unit(main)
"""


async def ready(counterpart: Counterpart) -> None:
    await aeventually(lambda: counterpart.report.ready, what="a report of readiness")


async def asked(counterpart: Counterpart, ask: str, name: str, *, within_s: float = 20.0) -> served_commands.UnitAnswer:
    counterpart.tell(served_commands.AskUnit(ask, f"id-{ask}", name, who="ann", dry_run=True, within_s=within_s))
    await aeventually(
        lambda: [a for a in counterpart.of(served_commands.UnitAnswer) if a.ask == ask], what=f"answer {ask}"
    )
    (answer,) = [a for a in counterpart.of(served_commands.UnitAnswer) if a.ask == ask]
    return answer


async def test_commands_are_served_while_others_never_end(counterpart: Counterpart, start: Start) -> None:
    start(SERVING)
    await ready(counterpart)
    for number in range(3):
        counterpart.tell(served_commands.AskUnit(f"slow{number}", "x", "never", within_s=1000))
    answer = await asked(counterpart, "1", "echo")
    assert wire.decode_as(dict[str, object], answer.body) == {"id": "id-1", "who": "ann", "dry_run": True}
    late = await asked(counterpart, "2", "never", within_s=0.2)
    assert late.code == ExitCode.TIMEOUT
    progress = counterpart.of(messages.Beat)[-1].progress
    await aeventually(lambda: counterpart.of(messages.Beat)[-1].progress > progress, what="the loop turning on")


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("refused", ExitCode.CONFLICT, "It is leased."),
        ("large", ExitCode.REFUSED, "more than fits into a message"),
        ("nonsense", ExitCode.FAILED, "nobody thought of this"),
    ],
)
async def test_failed_command_is_answered_with_its_error_code(
    counterpart: Counterpart, start: Start, name: str, code: ExitCode, says: str
) -> None:
    unit = start(SERVING)
    await ready(counterpart)
    answer = await asked(counterpart, "1", name)
    assert (answer.code, says in answer.error) == (code, True), answer
    assert ("KeyError" in unit.text()) is (name == "nonsense"), "the log has the traceback of the unexpected error"
    assert (await asked(counterpart, "2", "echo")).error == "", "the unit still serves commands"


async def test_concurrent_commands_are_limited_and_others_are_refused(counterpart: Counterpart, start: Start) -> None:
    start(SERVING)
    await ready(counterpart)
    for number in range(80):
        counterpart.tell(served_commands.AskUnit(f"{number}", "x", "never", within_s=1000))
    await aeventually(lambda: len(counterpart.of(served_commands.UnitAnswer)) >= 16)
    assert {answer.code for answer in counterpart.of(served_commands.UnitAnswer)} == {ExitCode.UNAVAILABLE}
    assert {int(answer.ask) for answer in counterpart.of(served_commands.UnitAnswer)} == set(range(64, 80))


async def test_unit_that_ends_refuses_its_commands(counterpart: Counterpart, start: Start) -> None:
    unit = start(SERVING)
    await ready(counterpart)
    counterpart.tell(served_commands.AskUnit("1", "x", "never", within_s=1000))
    assert (await asked(counterpart, "2", "echo")).error == ""
    counterpart.tell(messages.Drain(grace_s=5))
    assert await unit.code() == 0
    await counterpart.byes()
    (refused,) = [answer for answer in counterpart.of(served_commands.UnitAnswer) if answer.ask == "1"]
    assert refused.code == ExitCode.UNAVAILABLE


async def test_unit_without_a_handler_refuses_commands(counterpart: Counterpart, start: Start) -> None:
    start(
        """
        from agentrl.unit import run_unit
        def main(unit):
            unit.ready()
            while unit.sleep(0.05):
                pass
        run_unit(main)
        """
    )
    await ready(counterpart)
    assert (await asked(counterpart, "1", "echo")).code == ExitCode.UNAVAILABLE
    assert not any(hello.hears_deaths for hello in counterpart.of(messages.UnitHello))


async def test_deaths_reach_units_that_registered_for_them(counterpart: Counterpart, start: Start) -> None:
    unit = start(SERVING)
    await ready(counterpart)
    await aeventually(lambda: counterpart.of(messages.UnitHello)[-1].hears_deaths, what="a hello that says so")
    counterpart.tell(served_commands.UnitDied("sampler-0", 3))
    await aeventually(lambda: "died: sampler-0.3" in unit.text())
