"""At the desk of the hosts: the last words of a life are kept until its end is written down, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from agentrl.control.handlers.hosts import HostHandler
from agentrl.control.messaging.peers import Kind, Known
from agentrl.protocol import messages
from agentrl.protocol.messages import Exited, ExitStatus
from agentrl.protocol.rows import IncidentRow
from agentrl.supervision import instructions as do

HOST = Known(Kind.HOST, "a")
REPORT = do.Report("web-0", 3, "a", "exit 1", "started again at once", ExitStatus(code=1))


def test_last_words_are_kept_until_the_end_is_written_down() -> None:
    shown: list[IncidentRow] = []
    context = SimpleNamespace(
        supervisor=SimpleNamespace(is_present=lambda unit, incarnation: False),
        happened=lambda event: None,
        clock=SimpleNamespace(now=lambda: 5.0),
        observed=SimpleNamespace(last_report=lambda unit, incarnation: messages.UnitReport()),
        executor=SimpleNamespace(event=lambda *about: None),
        feed=SimpleNamespace(set=lambda key, row, urgent: shown.append(row)),
        state=SimpleNamespace(slots={"web-0": SimpleNamespace(spec=None)}),
    )
    desk = HostHandler(cast(Any, context), cast(Any, None), cast(Any, None))
    desk.message(HOST, Exited("web-0", 3, ExitStatus(code=1), ("last words",)))
    desk.incident(REPORT)
    desk.forgotten("web-0", 3)
    desk.incident(REPORT)
    assert [row.tail for row in shown] == [("last words",), ()]
