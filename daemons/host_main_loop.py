"""Runs the event loop of the host agent: its socket, its coordinator and its end. `daemons.host` imports it late."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentrl.config.containers import ends_with_process_1
from agentrl.config.this_host import this_host
from agentrl.host.agent import Agent
from agentrl.host.agent_lock import AgentLock
from agentrl.host.coordinator_watchdog import CoordinatorWatchdog
from agentrl.host.spawn_environment import Home
from agentrl.protocol import wire
from agentrl.transport.addresses import hub_address
from agentrl.transport.curve_keys import ClientKey, new_keypair
from agentrl.transport.dealer import Dealer

log = logging.getLogger("host")


def run_agent(
    args: argparse.Namespace, uuid: str, lock: AgentLock, coordinator_pid: int, *, ended_early: Callable[[], bool]
) -> int:
    """Run until the agent has nothing more to do or a signal ends it. `coordinator_pid` is a child started before."""
    own = ClientKey.load(args.key) if args.key else None
    coordinator = args.coordinator or (own.address if own is not None else hub_address(uuid))
    home = Home(uuid, args.name, args.state_dir, args.run_dir, coordinator=coordinator)
    if own is not None:
        path = args.state_dir / "hosts" / args.name / "units.key"
        units = key_for_units(path, own)
        home = replace(home, key=path, units_key=units.public, host_key=this_host(args.state_dir).key)
    return asyncio.run(_run(args, home, own, lock, coordinator_pid, ended_early))


def key_for_units(path: Path, own: ClientKey) -> ClientKey:
    """The key of the units of this host, which may not register a host. Made once for each coordinator."""
    if path.exists():
        known = ClientKey.load(path)
        if replace(known, name=own.name, public=own.public, secret=own.secret) == own:
            return known
    pair = new_keypair()
    made = replace(own, name=f"{own.name}.units", public=pair.public, secret=pair.secret)
    made.save(path)
    return made


def _on_end_of(pid: int, act: Callable[[], None]) -> None:
    """Call `act` when that process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        act()
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        act()

    loop.add_reader(handle, ended)


async def _run(
    args: argparse.Namespace,
    home: Home,
    key: ClientKey | None,
    lock: AgentLock,
    coordinator_pid: int,
    ended_early: Callable[[], bool],
) -> int:
    finished = asyncio.Event()
    agent, dealer = _connected_agent(args, home, key, lock, finished)
    end = _end_in_order(args, agent, finished)
    agent.start()
    dealer.start()
    if args.with_coordinator:
        agent.guard(_watchdog(agent, home, lock, coordinator_pid))
    if ended_early():
        end()
    if args.bound_to:
        _on_end_of(args.bound_to, lambda: end("what carried its host agent has ended"))
    log.info("The host agent of %s is up with %d incarnations in its ledger.", home.host, len(agent.incarnations))
    try:
        await finished.wait()
    finally:
        dealer.close()
        await agent.close()
        lock.release()
    return agent.exit_code


def _connected_agent(
    args: argparse.Namespace, home: Home, key: ClientKey | None, lock: AgentLock, finished: asyncio.Event
) -> tuple[Agent, Dealer]:
    """The agent and its socket, which call each other. Neither is started yet."""
    dealer = Dealer(
        home.coordinator,
        key=key,
        on_message=lambda frame: agent.receive_frame(frame),
        on_connected=lambda: agent.connected(),
        on_disconnected=lambda: agent.disconnected(),
        on_refused=lambda why: agent.not_admitted(why, final=dealer.key_refused),
    )
    agent = Agent(
        home,
        lambda message: dealer.send(wire.encode(message)),
        use_cgroups=args.cgroups == "auto",
        finished=finished,
        restore_files=lock.restore_file,
    )
    return agent, dealer


def _end_in_order(args: argparse.Namespace, agent: Agent, finished: asyncio.Event) -> Callable[..., None]:
    """Ends the agent in order, with the reason. From now on signals do this too."""
    told = "its container was stopped" if ends_with_process_1() else "its host agent got SIGTERM"

    def end(why: str = told) -> None:
        if args.leave_within > 0:
            agent.leave(args.leave_within, why)
        else:
            finished.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("SIGHUP: the agent goes on."))
    return end


def _watchdog(agent: Agent, home: Home, lock: AgentLock, started_pid: int) -> CoordinatorWatchdog:
    return CoordinatorWatchdog(
        agent.processes,
        home.state_dir,
        home.state_dir / "hosts" / home.host / "coordinator.log",
        home.run,
        on_given_up=lock.note_coordinator,
        on_left=agent.coordinator_left,
        on_taken=agent.run_was_taken,
        started_pid=started_pid,
    )
