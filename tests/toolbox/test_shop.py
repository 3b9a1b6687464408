"""The demo's server: its prices, its calculator and its faults, also over MCP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.toolbox.fresh_session_retry import FRESH
from assets.shop_server import ITEMS, BadRequestError, InjectedFaults, OutageError, Shop, price_of, value_of, written
from tests.toolbox.conftest import MakeToolbox, http_server

SHOP = (sys.executable, "-m", "assets.shop_server")


def test_prices_never_change() -> None:
    assert len(set(ITEMS)) == len(ITEMS) > 100
    assert price_of("baba") == 29
    assert min(map(price_of, ITEMS)) >= 10
    assert max(map(price_of, ITEMS)) <= 99
    with pytest.raises(BadRequestError, match="no such item: gold"):
        price_of("gold")


GOOD = {"3*12": "36", "2+3*4": "14", "(2+3)*4": "20", "7/2": "3.5", "1/3": "0.3333", "-4+1": "-3", " 6 ": "6"}
WRONG = ("", "3*", "2**9", "lamp", "ans", "1/0", "__import__('os')", "True", "\x00", "x.y", "[1]", "'a'")
TOO_LARGE = ("9" * 40, "9" * 25 + "*" + "9" * 25, "1e400", "(" * 150 + "1", "a" * 201)


@pytest.mark.parametrize(("expression", "value"), GOOD.items())
def test_the_calculator(expression: str, value: str) -> None:
    assert written(value_of(expression)) == value


@pytest.mark.parametrize("expression", [*WRONG, *TOO_LARGE])
def test_an_invalid_expression_is_an_error(expression: str) -> None:
    with pytest.raises(BadRequestError):
        value_of(expression)


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*"))
def test_whole_numbers_stay_exact(a: int, b: int, operator: str) -> None:
    expected = {"+": a + b, "-": a - b, "*": a * b}[operator]
    assert written(value_of(f"({a}){operator}({b})")) == str(expected)
    assert value_of("ans*2", Fraction(expected)) == 2 * expected


def test_the_seed_alone_decides_the_faults() -> None:
    faults = InjectedFaults(errors=0.03, latency_ms=15.0, spread=0.6, random=7)
    seen = [faults.of(f"s{session}", call) for session in range(500) for call in range(1, 7)]
    assert seen == [InjectedFaults(random=7).of(f"s{session}", call) for session in range(500) for call in range(1, 7)]
    assert seen != [InjectedFaults(random=8).of(f"s{session}", call) for session in range(500) for call in range(1, 7)]
    assert 0.02 < sum(fails for fails, _ in seen) / len(seen) < 0.04
    assert median(delay_s for _, delay_s in seen) == pytest.approx(0.015, rel=0.1)


async def test_a_call_with_an_injected_fault_changes_nothing() -> None:
    faults = InjectedFaults(errors=0.4, latency_ms=0.0, random=1)
    shop, results = Shop(faults), []
    for call in range(1, 40):
        try:
            results.append(await shop.call("s", "calculator", {"expr": "ans+1" if results else "1"}))
        except OutageError:
            assert faults.of("s", call)[0]
    assert results == [str(number) for number in range(1, len(results) + 1)]
    assert 10 < len(results) < 35


@pytest.fixture(scope="module")
def http_shop() -> Iterator[str]:
    with http_server(*SHOP, "--no-faults", "--http", "{port}") as (url, _):
        yield url


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_sessions_keep_their_own_results(make: MakeToolbox, http_shop: str, transport: str) -> None:
    server = (
        ToolServer(url=http_shop, session="keyed")
        if transport == "http"
        else ToolServer(command=SHOP, env={"SHOP_FAULTS": "off"}, session="keyed")
    )
    async with make({"shop": server}) as hands:
        for session in ("a", "b"):
            await hands.open(session, "shop")
        seen = []
        for number, (session, expr) in enumerate([("a", "2*3"), ("b", "7"), ("a", "ans+1"), ("b", "ans+1")]):
            seen.append((await hands.call(session, f"c{number}", "calculator", server="shop", expr=expr)).content)
        assert seen == ["6", "7", "7", "8"]
        assert (await hands.call("a", "l", "lookup", server="shop", item=ITEMS[0])).content == str(price_of(ITEMS[0]))
        wrong = await hands.call("a", "w", "lookup", server="shop", item="gold")
        assert (wrong.status, wrong.error_class, wrong.content) == ("tool_error", "policy", "no such item: gold")


async def test_an_injected_fault_is_an_infrastructure_error_and_repeats(make: MakeToolbox) -> None:
    command = (*SHOP, "--errors", "0.3", "--latency-ms", "1", "--random", "5")
    expected = [InjectedFaults(errors=0.3, random=5).of("s", call)[0] for call in range(1, 13)]
    async with make({"shop": ToolServer(command=command, session="keyed")}) as hands:
        await hands.open("s", "shop")
        answers = [await hands.call("s", f"c{call}", "lookup", server="shop", item=ITEMS[0]) for call in range(12)]
    assert [answer.status == "lost" for answer in answers] == expected
    assert {answer.error_class for answer in answers if answer.status == "lost"} == {"infrastructure"}
    assert any(expected)


def test_wrong_options_are_refused() -> None:
    done = subprocess.run([*SHOP, "--errors", "many"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--errors" in done.stderr


async def test_the_ledger_has_each_executed_call_once(make: MakeToolbox, tmp_path: Path) -> None:
    ledger = tmp_path / "written" / "ledger"
    ledger.parent.mkdir()
    sandbox = Sandbox(write=(str(ledger.parent),))
    faults = ("--errors", "0.5", "--latency-ms", "0", "--ledger", str(ledger))
    async with make(
        {"shop": ToolServer(command=(*SHOP, *faults), session="keyed", try_again=True, sandbox=sandbox)}
    ) as hands:
        await hands.open("s", "shop")
        calls = [f"c{number}" for number in range(6)]
        answers = {call: await hands.call("s", call, "lookup", server="shop", item=ITEMS[0]) for call in calls}
        for call in calls:
            assert await hands.call("s", call, "lookup", server="shop", item=ITEMS[0]) == answers[call]
    carried_out = [json.loads(line) for line in ledger.read_text().splitlines()]
    fine = [call for call, answer in answers.items() if answer.status == "ok"]
    assert 0 < len(fine) < len(calls)
    assert [entry["call"] for entry in carried_out if entry["session"] == "s"] == fine
    # The failed call was repeated in another session.
    fresh = [entry for entry in carried_out if entry["session"] != "s"]
    assert all(entry["call"].endswith(FRESH) and entry["session"] == f"s{FRESH}" for entry in fresh)
    assert not {entry["call"].removesuffix(FRESH) for entry in fresh} & set(fine)
