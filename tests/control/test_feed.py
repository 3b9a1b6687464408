"""The feed: a subscriber with a snapshot and the following rows has the rows of the coordinator."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.control.state.feed_publisher import REFRESH_S, Feed
from agentrl.protocol import wire
from agentrl.protocol.feed import FeedBeat, FeedRow
from agentrl.protocol.rows import AnyRow, HostRow, UnitRow, UnitState


def host(name: str, units: int) -> HostRow:
    return HostRow(name, "up", units=units)


class Subscriber:
    """A subscriber as the protocol describes it: subscribe, snapshot, drop rows up to N, apply; after a gap it starts
    again.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.rows: dict[str, AnyRow] = {}
        self.seq = 0
        self.snapshots = 0
        self.again()

    def again(self) -> None:
        rows, self.seq = self.feed.snapshot()
        self.rows = {key: wire.decode_row(body) for key, body in rows}
        self.snapshots += 1

    def receive(self, frame: bytes) -> None:
        message = wire.decode_feed(frame)
        if isinstance(message, FeedBeat):
            if message.seq != self.seq:
                self.again()
        elif isinstance(message, FeedRow) and message.seq > self.seq:
            if message.seq > self.seq + 1:
                self.again()
                return
            self.seq = message.seq
            if msgspec.msgpack.decode(message.value) is None:
                self.rows.pop(message.key, None)
            else:
                self.rows[message.key] = wire.decode_row(message.value)


def decoded(frames: list[bytes]) -> list[tuple[str, int]]:
    found = (wire.decode_feed(frame) for frame in frames)
    return [(message.key, message.seq) for message in found if isinstance(message, FeedRow)]


def test_unchanged_row_is_not_published_again() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    assert feed.set("host/a", host("a", 1))
    assert not feed.set("host/a", host("a", 1))
    feed.tick(0.0, 0.0)
    feed.tick(0.6, 0.0)
    assert decoded(frames) == [("host/a", 1)]


def test_a_key_has_at_most_two_rows_per_second_and_the_last_one_is_sent() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    for step in range(100):
        feed.set("host/a", host("a", step))
        feed.tick(step / 10, 0.0)
    assert 19 <= len(decoded(frames)) <= 21
    frames.clear()
    feed.tick(20.0, 0.0)
    feed.tick(20.0, 0.0)
    assert len(decoded(frames)) == 1
    assert feed.get("host/a") == host("a", 99)


def test_urgent_row_is_sent_at_once_and_only_once() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    feed.tick(0.0, 0.0)
    feed.set("host/a", host("a", 1), urgent=True)
    feed.set("host/a", host("a", 2), urgent=True)
    assert decoded(frames) == [("host/a", 1), ("host/a", 2)]
    feed.set("host/a", host("a", 3))
    feed.tick(0.1, 0.0)
    assert len(decoded(frames)) == 2, "held back"
    feed.set("host/a", host("a", 4), urgent=True)
    feed.tick(0.7, 0.0)
    feed.tick(1.4, 0.0)
    assert len(decoded(frames)) == 3


def test_every_row_is_sent_within_the_refresh_time_for_any_number_of_rows() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    names = [f"host-{number}" for number in range(3000)]
    for name in names:
        feed.set(f"host/{name}", host(name, 1), urgent=True)
    for step in range(600):
        now = step / 10
        if now == 10.0:
            frames.clear()
            for name in names:
                feed.set(f"host/{name}", host(name, 2))
        # Some rows change all the time and use their part of the budget.
        for name in names[:100]:
            feed.set(f"host/{name}", host(name, 10 + step))
        feed.tick(now, 0.0)
        if now >= 10.0 + REFRESH_S + 1.0:
            break
    assert {key for key, _ in decoded(frames)} == {f"host/{name}" for name in names}


def test_constantly_changing_rows_share_a_budget_and_each_is_sent() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    names = [f"host-{number}" for number in range(200)]
    for step in range(600):
        for name in names:
            feed.set(f"host/{name}", host(name, step))
        feed.tick(step / 10, 0.0)
    assert sum(map(len, frames)) / 60 <= 20_000
    newest = dict(decoded(frames))
    assert len(newest) == 200
    assert min(newest.values()) > feed.seq - 300, "they take turns"
    frames.clear()
    feed.set("host/host-7", host("host-7", 1000), urgent=True)
    assert [key for key, _ in decoded(frames)] == ["host/host-7"], "an urgent row does not wait for its turn"


def test_first_row_is_sent_before_others_within_the_limits() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    names = [f"host-{number}" for number in range(200)]
    late: list[int] = []
    sent_before = 0
    for step in range(600):
        for name in names:
            feed.set(f"host/{name}", host(name, step), first=name == "host-199" and step % 10 == 0)
        feed.tick(step / 10, 0.0)
        new, sent_before = decoded(frames[sent_before:]), len(frames)
        if "host/host-199" in dict(new):
            late.append(step)
    assert sum(map(len, frames)) / 60 <= 20_000
    assert {step // 10 for step in late if step % 10 <= 5} == set(range(60)), "each change is sent within half a second"
    assert len(late) <= 120, "at most two rows a second"
    newest = dict(decoded(frames))
    assert min(newest.values()) > feed.seq - 400, "the other rows still take turns"


def test_beat_comes_every_second_with_the_sequence_number() -> None:
    frames: list[bytes] = []
    feed = Feed("epoch", frames.append)
    feed.set("host/a", host("a", 1), urgent=True)
    for step in range(40):
        feed.tick(step / 10, 500.0 + step / 10)
    beats = [beat for frame in frames if isinstance(beat := wire.decode_feed(frame), FeedBeat)]
    assert [round(beat.now_ct) for beat in beats] == [0, 1, 2, 3]
    assert all((beat.epoch, beat.seq) == ("epoch", 1) for beat in beats)
    assert beats[0].at == 500.0


def test_rows_can_be_selected_by_kind_and_removed() -> None:
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    feed.set("host/a", host("a", 1))
    feed.set("unit/w-0", UnitRow("w-0", "w", "sidecar", UnitState.READY))
    assert list(feed.rows(["unit"])) == ["unit/w-0"]
    assert [key for key, _ in feed.snapshot(["host"])[0]] == ["host/a"]
    assert feed.remove("host/a")
    assert not feed.remove("host/a")
    assert feed.get("host/a") is None
    assert list(feed.rows()) == ["unit/w-0"]
    (gone,) = (row for frame in frames if isinstance(row := wire.decode_feed(frame), FeedRow))
    assert gone.key == "host/a"
    assert bytes(gone.value) == b"\xc0"


KEYS = st.sampled_from(["host/a", "host/b", "host/c", "host/d"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 3), st.booleans()),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.just("tick"), st.sampled_from([0.0, 0.1, 0.3, 0.6, 2.0])),
        st.tuples(st.just("join")),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(STEPS, st.sets(st.integers(0, 80)), st.sets(st.integers(0, 80)))
def test_subscriber_that_loses_frames_ends_with_the_rows_of_the_publisher(
    steps: list[tuple[object, ...]], dropped: set[int], delayed: set[int]
) -> None:
    """Frames are dropped at random; others are delivered late, after a newer snapshot."""
    subscribers: list[tuple[Subscriber, list[bytes]]] = []
    count = 0

    def publish(frame: bytes) -> None:
        nonlocal count
        count += 1
        for _, pipe in subscribers:
            if count not in dropped:
                pipe.append(frame)

    def deliver() -> None:
        for subscriber, pipe in subscribers:
            if count not in delayed:
                while pipe:
                    subscriber.receive(pipe.pop(0))

    feed = Feed("e", publish)
    now = 0.0
    for step in steps:
        match step:
            case ("set", str(key), int(value), bool(urgent)):
                feed.set(key, host(key, value), urgent=urgent)
            case ("remove", str(key)):
                feed.remove(key)
            case ("tick", float(gap)):
                now += gap
                feed.tick(now, now)
            case ("join",):
                subscribers.append((Subscriber(feed), []))
        deliver()
    dropped.clear()
    delayed.clear()
    for _ in range(3):
        now += 1.1
        feed.tick(now, now)
        deliver()
    for subscriber, _ in subscribers:
        assert subscriber.rows == feed.rows()
        assert subscriber.seq == feed.seq


def test_subscriber_that_loses_nothing_takes_one_snapshot() -> None:
    pipe: list[bytes] = []
    feed = Feed("e", pipe.append)
    feed.set("host/a", host("a", 0))
    subscriber = Subscriber(feed)
    for step in range(50):
        feed.set(f"host/{step % 7}", host("x", step))
        feed.tick(step / 5, 0.0)
    feed.tick(100.0, 0.0)
    for frame in pipe:
        subscriber.receive(frame)
    assert subscriber.snapshots == 1
    assert subscriber.rows == feed.rows()


def test_tick_without_changes_does_no_work_per_key() -> None:
    """Counted, not timed: with ten thousand rows and one change, one row is encoded and sent."""
    frames: list[bytes] = []
    feed = Feed("e", frames.append)
    for number in range(10_000):
        feed.set(f"host/{number}", host(str(number), 0), urgent=True)
    feed.tick(0.0, 0.0)
    frames.clear()
    feed.set("host/77", host("77", 1))
    feed.tick(10.0, 0.0)
    assert len(frames) == 2
    assert not feed._changed
    assert not feed._held
