"""The coordinator forgets hosts that are gone for good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.control.clock import Clock
from agentrl.control.host_admission import LOOK_EVERY_S, HostAdmission
from agentrl.control.messaging.peers import Kind, Known, Peers
from agentrl.supervision import events
from agentrl.supervision.unit_slots import HostState, RunState, State
from agentrl.transport.hub import Peer


def test_silent_hosts_are_looked_for_only_every_few_seconds(tmp_path: Path) -> None:
    state = State(RunState())
    happened: list[events.HostForgotten] = []
    peers = Peers()
    peers.welcome(Peer.__new__(Peer), Known(Kind.HOST, "b"))
    context: Any = SimpleNamespace(
        state=state,
        peers=peers,
        host="here",
        clock=Clock(),
        supervisor=SimpleNamespace(times=SupervisionTimes()),
        host_leases=SimpleNamespace(end=lambda host: None),
        observed=SimpleNamespace(hosts={}),
        happened=happened.append,
    )
    admission = HostAdmission(context, {}, tmp_path)
    now = 1e9
    admission.forget_silent(now)
    state.hosts["b"] = HostState("b", connected=False)
    admission.forget_silent(now + LOOK_EVERY_S - 0.1)
    assert not happened
    admission.forget_silent(now + LOOK_EVERY_S)
    assert [event.host for event in happened] == ["b"]
    assert peers.hosts() == [], "a broken link leaves the connection open"
