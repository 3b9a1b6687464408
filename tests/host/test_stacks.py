"""Stacks of units: Python stacks of units with the runtime, kernel stacks of all others."""

from __future__ import annotations

from agentrl.host import procfs
from agentrl.protocol import wire
from agentrl.protocol.messages import Answer, Ask, DumpStacks, StackReport
from tests.host.harness import SLEEP, Bench, python, spawn
from tests.waiting import aeventually

SPEAKER = """
import faulthandler, os, signal, time
folder = os.environ['AGENTRL_RUN_DIR'] + '/stacks'
os.makedirs(folder, exist_ok=True)
path = folder + '/' + os.environ['AGENTRL_INCARNATION'] + '.txt'
file = open(path + '.draft', 'w')
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
def stand_here():
    os.rename(path + '.draft', path)
    time.sleep(1000)
stand_here()
"""


async def stacks(bench: Bench, *units: str) -> dict[str, str]:
    answer = await bench.sent.one(Answer)
    return wire.decode_as(StackReport, answer.body).stacks


async def test_stacks_of_units_with_and_without_the_runtime(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("talker-0", *python(SPEAKER), speaks=True))
        agent.receive(spawn("mute-0", *python("import time; time.sleep(1000)"), speaks=True))
        agent.receive(spawn("web-0", *SLEEP))
        file = bench.home.run_dir / "stacks" / "talker-0.1.txt"
        await aeventually(file.exists)
        sleeper = agent.incarnations["web-0.1"].entry.pid
        await aeventually(lambda: "sleep" in procfs.command(sleeper).split()[0])
        agent.receive(Ask("a", DumpStacks()))
        found = await stacks(bench)
        assert "stand_here" in found["talker-0.1"]
        assert found["web-0.1"].startswith("It does not use the unit runtime, so only the kernel was asked.\n")
        assert "sleep" in found["web-0.1"]
        assert "thread" in found["web-0.1"]
        assert found["mute-0.1"].startswith("It has not prepared itself to write its stacks.\n")
        assert "thread" in found["mute-0.1"], "a unit that registered no handler is never sent the signal"
        assert all(life.alive for life in agent.incarnations.values())
        bench.sent.messages.clear()
        agent.receive(Ask("b", DumpStacks(("web-0",))))
        assert set(await stacks(bench)) == {"web-0.1"}
