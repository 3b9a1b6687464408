"""Implements the tool server of the demo: prices of items, and a calculator that remembers its last result.

    python -m assets.shop_server [--http PORT] [--errors 0.03] [--latency-ms 15] [--spread 0.6] [--random N]
                                 [--no-faults] [--ledger FILE]

It speaks MCP over stdio, or over streamable HTTP with `--http`. Options can be set in the environment too: SHOP_ERRORS,
SHOP_LATENCY_MS, SHOP_SPREAD, SHOP_RANDOM, and SHOP_FAULTS=off for `--no-faults`. With `--ledger` it writes each call to
a file before it executes it, one JSON line each, so that calls that were executed twice can be found.

Invariants:
- Prices never change.
- The last result of the calculator (`ans`) belongs to one session, named by the metadata of each call.
- The injected faults of a call (an error, a delay) depend only on the random number, the session and the number of the
  call in it, so that a run can be repeated.
- A call that fails by an injected fault changes nothing and is not in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import json
import math
import os
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.toolservers.calculator import ARITHMETIC, CalculationError, Evaluation

if TYPE_CHECKING:  # the SDK is slow to import, and the dataset needs this module without it
    from mcp.server.lowlevel import Server

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou")
ITEMS: tuple[str, ...] = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
"""Invented names, so that a model cannot know them and has to copy them."""
_KNOWN = frozenset(ITEMS)
LEAST_PRICE, MOST_PRICE = 10, 99
TOOLS: dict[str, dict[str, Any]] = {
    "lookup": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    "calculator": {"type": "object", "properties": {"expr": {"type": "string"}}, "required": ["expr"]},
}
DESCRIPTIONS = {
    "lookup": "The price of one item.",
    "calculator": "The value of an expression with + - * / and brackets; `ans` is the last result.",
}
EFFECTS = {"lookup": "pure", "calculator": "session"}
"""What a call changes: the calculator remembers its result for its session."""
EXAMPLES = {"lookup": {"item": ITEMS[0]}, "calculator": {"expr": "2*(3+4)"}}
"""Arguments that each tool takes, for the one call of it before a run starts."""
EFFECT_KEY = "agentrl/effect"
EXAMPLE_KEY = "agentrl/example"
SESSION_KEY = "agentrl/session"
"""The key of the session in the metadata of a call."""
CALL_KEY = "agentrl/call"
"""The key of the id of the call."""
MOST_SESSIONS = 20_000
_MOST_CHARS = 200
_MOST_DIGITS = 30


class BadRequestError(Exception):
    """The call is wrong; its caller gets the message as the result."""


class OutageError(Exception):
    """An injected failure of the infrastructure."""


def price_of(item: str) -> int:
    if item not in _KNOWN:
        raise BadRequestError(f"no such item: {item[:_MOST_CHARS]}")
    spread = MOST_PRICE - LEAST_PRICE + 1
    return LEAST_PRICE + int.from_bytes(hashlib.blake2b(item.encode(), digest_size=4).digest(), "big") % spread


def value_of(expression: str, ans: Fraction | None = None) -> Fraction:
    """The value of an expression. Raises BadRequestError if it is invalid, too large, or divides by zero."""
    evaluation = Evaluation(
        names={} if ans is None else {"ans": ans},
        operators=ARITHMETIC,
        functions=False,
        most_chars=_MOST_CHARS,
        most_digits=_MOST_DIGITS,
    )
    try:
        return evaluation.value_of(expression)
    except CalculationError as wrong:
        why = str(wrong)
        raise BadRequestError("there is no last result yet" if why == "not understood: ans" else why) from None


def written(value: Fraction) -> str:
    """The number with at most four decimals."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class InjectedFaults:
    """How often calls fail like broken infrastructure, and how long they take."""

    errors: float = 0.03
    """Share of calls that fail."""
    latency_ms: float = 15.0
    """Median delay."""
    spread: float = 0.6
    """Standard deviation of the delay's logarithm."""
    random: int = 0

    def of(self, session: str, call: int) -> tuple[bool, float]:
        """Return whether this call fails, and its delay in seconds."""
        chance = random.Random(f"{self.random} {session} {call}")
        fails = chance.random() < self.errors
        delay_s = self.latency_ms / 1000.0 * math.exp(self.spread * chance.gauss()) if self.latency_ms else 0.0
        return fails, delay_s


NO_FAULTS = InjectedFaults(errors=0.0, latency_ms=0.0)


@dataclass(slots=True)
class _Session:
    """The state of one session."""

    calls: int = 0
    ans: Fraction | None = None


class Ledger:
    """The executed calls, in a file that several processes may share."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, session: str, call: str, tool: str, arguments: Mapping[str, Any]) -> None:
        """Appends one line in a single write, because another process may write at the same time."""
        entry = {"session": session, "call": call, "tool": tool, "arguments": dict(arguments), "pid": os.getpid()}
        os.write(self._file, json.dumps(entry).encode() + b"\n")


class Shop:
    """All sessions of one server."""

    def __init__(self, faults: InjectedFaults = NO_FAULTS, ledger: Ledger | None = None) -> None:
        self._faults = faults
        self._ledger = ledger
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def call(self, session: str, tool: str, arguments: Mapping[str, Any], *, call: str = "") -> str:
        """Returns the result. Raises BadRequestError or OutageError. `call` is its id in the ledger."""
        session_state = self._sessions.setdefault(session, _Session())
        self._sessions.move_to_end(session)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        session_state.calls += 1
        fails, delay_s = self._faults.of(session, session_state.calls)
        if delay_s:
            await asyncio.sleep(delay_s)
        if fails:
            raise OutageError(f"{tool} cannot be reached, the line is down")
        if self._ledger is not None:
            self._ledger.note(session, call, tool, arguments)
        return self._act(session_state, tool, arguments)

    def _act(self, session_state: _Session, tool: str, arguments: Mapping[str, Any]) -> str:
        match tool, dict(arguments):
            case "lookup", {"item": str(item)}:
                return str(price_of(item.strip()))
            case "calculator", {"expr": str(expression)}:
                session_state.ans = value_of(expression, session_state.ans)
                return written(session_state.ans)
            case "lookup" | "calculator", _:
                raise BadRequestError(f"{tool} wants {', '.join(TOOLS[tool]['required'])} as text")
            case _:
                raise BadRequestError(f"no such tool: {tool}")


def server_of(shop: Shop) -> Server[Any]:
    """The shop as an MCP server."""
    import mcp_types as types
    from mcp import MCPError
    from mcp.server.lowlevel import Server

    offered = [
        types.Tool(
            name=name,
            description=DESCRIPTIONS[name],
            input_schema=schema,
            annotations=types.ToolAnnotations(read_only_hint=EFFECTS[name] == "pure", open_world_hint=False),
            _meta={EFFECT_KEY: EFFECTS[name], EXAMPLE_KEY: EXAMPLES[name]},
        )
        for name, schema in TOOLS.items()
    ]

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        meta = context.meta or {}
        session, call = str(meta.get(SESSION_KEY, "")), str(meta.get(CALL_KEY, ""))
        try:
            text, failed = await shop.call(session, params.name, params.arguments or {}, call=call), False
        except BadRequestError as mistake:
            text, failed = str(mistake), True
        except OutageError as storm:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(storm)) from None
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return Server("shop", on_list_tools=list_tools, on_call_tool=call_tool)


def serve_stdio(shop: Shop) -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        server = server_of(shop)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(serve, backend_options={"use_uvloop": importlib.util.find_spec("uvloop") is not None})


def serve_http(shop: Shop, port: int) -> None:
    import uvicorn

    uvicorn.run(server_of(shop).streamable_http_app(json_response=True), port=port, log_level="error")


def _options(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> argparse.Namespace:
    usual = InjectedFaults()
    parser = argparse.ArgumentParser(prog="python -m assets.shop_server", description="The demo's tool server.")
    for option, kind, default, text in (
        ("errors", float, usual.errors, "share of calls that fail like broken infrastructure"),
        ("latency-ms", float, usual.latency_ms, "median delay of a call"),
        ("spread", float, usual.spread, "how much delays differ"),
        ("random", int, usual.random, "seed of the injected faults"),
    ):
        given = environ.get(f"SHOP_{option.upper().replace('-', '_')}", default)
        parser.add_argument(f"--{option}", type=kind, default=given, help=f"{text} (%(default)s)")
    off = environ.get("SHOP_FAULTS", "on") == "off"
    parser.add_argument("--no-faults", action="store_true", default=off, help="inject no faults")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="append each executed call to this file")
    parser.add_argument("--http", type=int, default=0, metavar="PORT", help="serve over HTTP instead of stdio")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = _options(arguments, os.environ)
    faults = InjectedFaults(given.errors, given.latency_ms, given.spread, given.random)
    shop = Shop(NO_FAULTS if given.no_faults else faults, Ledger(given.ledger) if given.ledger else None)
    if given.http:
        serve_http(shop, given.http)
    else:
        serve_stdio(shop)


if __name__ == "__main__":
    main()
