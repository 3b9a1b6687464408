"""How many processes of a tool server are ready in advance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies.warm_pool import LEAST, WINDOW_S, Demand, wanted_ready

GIB = 1 << 30


def wanted(rate: float, *, start_s: float = 1.0, waiting: int = 0, size: int = 64, free: int = 64 * GIB) -> int:
    return wanted_ready(rate, start_s, waiting=waiting, size=size, process_bytes=GIB // 4, free_bytes=free)


def test_faster_arrivals_and_slower_starts_need_more_ready() -> None:
    assert wanted(0.0) == LEAST
    assert wanted(4.0) == 8
    assert wanted(16.0) == 24
    assert wanted(4.0, start_s=4.0) == 24
    assert wanted(1000.0) == 64


def test_memory_bounds_what_is_ready_but_not_what_sessions_wait_for() -> None:
    assert wanted(16.0, free=4 * GIB) == 8
    assert wanted(16.0, free=0) == 1
    assert wanted(16.0, free=0, waiting=5) == 5


def test_pool_is_whole_at_the_start_and_shrinks_without_sessions() -> None:
    demand = Demand.at_start(64, 0.0)
    assert wanted(demand.rate(0.0)) == 64
    sizes = [wanted(demand.rate(time)) for time in range(0, int(8 * WINDOW_S), 30)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == LEAST


def test_rate_of_steady_arrivals_is_found() -> None:
    demand = Demand(0.0, 0.0)
    for number in range(10 * int(WINDOW_S)):
        demand = demand.arrived(number / 2)
    assert 1.9 < demand.rate(demand.at) < 2.1


@given(st.floats(0, 1e6), st.floats(0, 1e3), st.integers(0, 1000), st.integers(1, 100), st.integers(0, 1 << 40))
def test_wanted_is_within_the_pool(rate: float, start_s: float, waiting: int, size: int, free: int) -> None:
    found = wanted_ready(rate, start_s, waiting=waiting, size=size, process_bytes=1 << 20, free_bytes=free)
    assert min(size, max(1, waiting)) <= found <= size
