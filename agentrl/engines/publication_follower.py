"""How an engine unit follows publications: it loads new weights and reports what it serves.

Invariants:
- weights serve only after their files and their canary agree with the announcement;
- a refused publication is refused once, with the reason, and the previous version continues to serve;
- an update needs a permit, so that not all engines update at the same time;
- an engine that cannot serve while it loads leaves routing before it begins;
- the newest publication that was not refused is loaded; older ones are skipped;
- getting the files of a version stops when a newer version makes them worthless, but never for two versions in a row;
- an engine whose load does not end dies, so that another one replaces it;
- while the database is away the engine goes on serving its version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from agentrl.engines.canary import Agreement
from agentrl.engines.interface import EngineGoneError, TwoVersionEngine, WeightOrders, WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.formatting.amounts import moment
from agentrl.store.database import StoreError
from agentrl.store.documents import Service

log = logging.getLogger("engine")
REPORT_EVERY_S = 2.0
LOOK_EVERY_S = 0.2
LOOK_FOR_PINS_EVERY_S = 1.0
"""This is often enough, because an evaluation takes much longer."""
ACT_AT_MOST_S = 60.0
"""How long the requests of one look to the store and to the engine may take, without loading."""
MAX_WAIT_S = 5.0
LEAVE_WITHIN_S = 5.0
LOOK_FOR_NEWER_S = 1.0
"""How often to look for a newer version while files are being transferred."""
State = Literal["starting", "loading", "serving", "parked", "draining", "gone"]
"""`parked`: it has left its device to the trainer."""


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Publication that an engine reads."""

    version: int
    path: str
    """The path of its files, relative to the run's directory."""
    manifest: Manifest


class Publications(Protocol):
    """The interface to the store. If a method fails, the error is logged and the call is repeated later."""

    async def newest(self, than: int | None, *, but: Collection[int] = ()) -> Announced | None:
        """The newest publication that engines should serve and that is not in `but`; None if it is not newer than this
        version."""
        ...

    async def pinned(self) -> Announced | None:
        """The version that an evaluation needs beside the newest one."""
        ...

    async def permit(self, version: int, engine: str) -> bool:
        """Whether this engine may update now. At least half of the engines stay routed."""
        ...

    async def served(self, version: int, engine: str, agreement: Agreement | None, *, at: datetime) -> None:
        """Stores that this engine serves the version since `at`, with this canary result; gives the permit back."""
        ...

    async def refused(self, version: int, engine: str, why: str) -> None:
        """Stores that this engine refuses the version; gives the permit back."""
        ...

    async def report(self, service: Service) -> None: ...


class UnitEngine(WeightOrders, Protocol):
    """Any kind of engine as its unit uses it."""

    @property
    def agreement(self) -> Agreement | None:
        """The canary result of the weights that serve."""
        ...

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute; then `steps` grows."""
        ...

    @property
    def steps(self) -> int:
        """Grows while the engine works; a watchdog detects a hang by it."""
        ...

    def check(self) -> None:
        """Raises the error that ended the engine, if it ended."""
        ...

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None:
        """`manifest` defaults to the one in the directory."""
        ...


class RunningEngine(NamedTuple):
    """An engine and its address."""

    engine: UnitEngine
    url: str
    second: TwoVersionEngine | None = None
    """The engine itself, if it can hold a second version."""


class _Decision(NamedTuple):
    version: int
    at: datetime
    refusal: str = ""
    agreement: Agreement | None = None


def is_worthless(share: float, after_another: bool) -> bool:
    """Whether a transfer of which this share is done should be stopped in favour of a newer version. A transfer that is
    more than half done is finished. If versions come faster than their files, every other one is finished."""
    return share < 0.5 and not after_another


async def nothing_to_bring(announced: Announced) -> None:
    """Does nothing, for a host that shares the run's directory."""


async def nothing_to_keep(versions: Collection[int]) -> None: ...


class PublicationFollower:
    """Keeps one engine at the newest publication."""

    def __init__(
        self,
        engine: UnitEngine,
        publications: Publications,
        service: Service,
        *,
        run_dir: Path,
        second: TwoVersionEngine | None = None,
        evaluates: bool = True,
        only_evaluates: bool = False,
        bring: Callable[[Announced], Awaitable[None]] = nothing_to_bring,
        keep: Callable[[Collection[int]], Awaitable[None]] = nothing_to_keep,
        brought: Callable[[], float] = lambda: 1.0,
        load_within_s: float = 600.0,
        on_version: Callable[[int], None] = lambda version: None,
        on_canary: Callable[[Agreement], None] = lambda agreement: None,
        on_serving: Callable[[str], None] = lambda serving: None,
        on_news: Callable[[str], None] = lambda sentence: None,
        on_problem: Callable[[str], None] = lambda sentence: None,
        waiting_for: Callable[[int], AbstractContextManager[None]] = lambda version: contextlib.nullcontext(),
    ) -> None:
        """`service` names the engine and its address; its state and version are kept here. `on_problem` gets the reason
        why no version is served, and an empty text when one is.

        Without `second` the engine holds only one version. If such an engine `evaluates`, it serves the version of an
        evaluation instead of the newest one. An engine that `only_evaluates` serves only versions of evaluations, only
        to calls that name the version, and does not make publications current. `waiting_for` is entered while a version
        is loaded. `bring` gets the files of a version to this host, `brought` returns the share of them that has
        arrived, and `keep` names the versions whose files are still needed.
        """
        self._engine = engine
        self._publications = publications
        self._service = service
        self._run_dir = run_dir
        self._second = second
        self._evaluates = evaluates
        self._only_evaluates = only_evaluates
        self._bring = bring
        self._keep = keep
        self._brought = brought
        self._abandoned = False
        """Whether the last transfer was stopped because a newer version made it worthless."""
        self._load_within_s = load_within_s
        self._on_version = on_version
        self._on_canary = on_canary
        self._on_serving = on_serving
        self._on_news = on_news
        self._on_problem = on_problem
        self._waiting_for = waiting_for
        self._refused: set[int] = set()
        self._unreported: _Decision | None = None
        """A decision that is not yet in the store."""
        self._evaluated: Announced | None = None
        self._pinned: int | None = None
        self._canary_passed = ""
        """The time at which the canary passed, for people."""
        self.version: int | None = None
        self.state: State = "starting"
        self.loading = asyncio.Lock()
        """Held while weights are loaded; holding it prevents any load."""

    async def follow(self, also: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Loads and reports until cancelled. `also` is done as often as it looks for weights."""
        async with asyncio.TaskGroup() as tasks:
            for act in (self.look, *also):
                tasks.create_task(self._repeat(act, LOOK_EVERY_S), name=act.__name__)
            tasks.create_task(self._repeat(self.look_for_pins, LOOK_FOR_PINS_EVERY_S), name="pin weights")
            tasks.create_task(self._repeat(self.report, REPORT_EVERY_S), name="report engine")

    async def look(self) -> None:
        """Looks at the publications once and loads what is newer."""
        await self._report_decision()
        if self.loading.locked():
            return
        wanted = await self._wanted()
        # The files come before the permit: an engine that still gets files stays in routing, and hosts that get a
        # version at the same time pass it on to each other.
        if wanted is None or not await self._has_files(wanted):
            return
        if self._only_evaluates or await self._publications.permit(wanted.version, self._service.id):
            async with self.loading:
                await self._take(wanted)
            await self._report_decision()
            await self._keep({version for version in (self.version, self._pinned) if version is not None})

    async def _has_files(self, announced: Announced) -> bool:
        """Get the files of a version to this host. Returns False if the version is refused because its manifest is
        damaged, or if a newer version made it worthless."""
        bringing = asyncio.ensure_future(self._bring(announced))
        try:
            while not (await asyncio.wait([bringing], timeout=LOOK_FOR_NEWER_S))[0]:
                if (newer := await self._newer_than(announced)) and is_worthless(self._brought(), self._abandoned):
                    self._abandoned = True
                    self._on_news(f"version {announced.version} is not got any further: {newer.version} is there")
                    return False
            await bringing
        except WeightsRefusedError as wrong:
            self._refuse(announced.version, wrong.message)
            return False
        finally:
            bringing.cancel()
            await asyncio.gather(bringing, return_exceptions=True)
        self._abandoned = False
        return True

    async def _newer_than(self, announced: Announced) -> Announced | None:
        """A newer publication, if there is one; None for a version that an evaluation needs, and while the database is
        away."""
        if self._evaluated is not None and self._evaluated.version == announced.version:
            return None
        with contextlib.suppress(StoreError):
            return await self._publications.newest(announced.version, but=self._refused)
        return None

    async def look_for_pins(self) -> None:
        """Holds the version that an evaluation needs."""
        self._evaluated = await self._publications.pinned()
        if self._second is not None and self._evaluates:
            await self._pin(self._second, self._evaluated)

    async def _wanted(self) -> Announced | None:
        """The publication to load now, if any."""
        if self._only_evaluates:
            found = self._evaluated
            known = found is None or found.version == self.version or found.version in self._refused
            return None if known else found
        evaluated = self._evaluated if self._second is None and self._evaluates else None
        if evaluated is not None and evaluated.version not in self._refused:
            return evaluated if evaluated.version != self.version else None
        return await self._publications.newest(self.version, but=self._refused)

    async def report(self) -> None:
        load = await self._engine.load()
        await self._publications.report(
            msgspec.structs.replace(
                self._service,
                state=self.state,
                version=None if self._only_evaluates else self.version,
                versions_loaded=list(load.versions_loaded),
                slots=load.slots,
                running=load.running + load.waiting,
            )
        )

    async def leave(self, state: Literal["draining", "gone"]) -> None:
        """Reports that no more calls should come. If the store is away, the missing reports have the same effect."""
        self.state = state
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self.report()
        except Exception:
            log.exception("%s cannot report that it is %s", self._service.id, state)

    async def _take(self, announced: Announced) -> None:
        version = announced.version
        self._on_news(f"loading version {version}")
        self._on_serving(f"loading(v{version})" if self.version is None else f"loading(v{self.version}→v{version})")
        await self._leave_routing()
        try:
            with self._waiting_for(version):
                async with asyncio.timeout(self._load_within_s):
                    await self._engine.update(str(self._path_of(announced)), version, announced.manifest)
        except WeightsRefusedError as wrong:
            self._refuse(version, wrong.message)
        except TimeoutError:
            raise EngineGoneError(f"Version {version} was not loaded within {self._load_within_s:g} s.") from None
        else:
            self.version = version
            self._on_version(version)
            self._on_problem("")
            now, agreement = datetime.now(UTC), self._engine.agreement
            if agreement is not None and agreement.tokens:
                self._canary_passed = f", canary passed at {moment(now.timestamp())}"
                self._on_canary(agreement)
            self._on_news(f"serves version {version}{self._canary_passed}")
            if not self._only_evaluates:
                self._unreported = _Decision(version, now, agreement=agreement)
        self._return_to_serving()

    async def _leave_routing(self) -> None:
        """Leaves routing if the engine cannot answer while it loads."""
        if self._second is None and self.state == "serving":
            self.state = "loading"
            await self.report()

    def _return_to_serving(self) -> None:
        if self.version is not None:
            self.state = "serving" if self.state in ("starting", "loading") else self.state
            self._on_serving(f"serving(v{self.version})")
        else:
            self._on_serving("")

    def _refuse(self, version: int, why: str) -> None:
        log.warning("version %d is refused: %s", version, why)
        self._refused.add(version)
        serving = (
            "nothing serves" if self.version is None else f"version {self.version} still serves{self._canary_passed}"
        )
        self._on_news(f"refused version {version} ({why}); {serving}")
        if self.version is None:
            self._on_problem(f"version {version} is refused, so nothing serves: {why}")
        self._unreported = _Decision(version, datetime.now(UTC), why)

    async def _report_decision(self) -> None:
        """Reports the last decision; it is kept until the store has it."""
        if (decision := self._unreported) is None:
            return
        if decision.refusal:
            await self._publications.refused(decision.version, self._service.id, decision.refusal)
        else:
            await self._publications.served(decision.version, self._service.id, decision.agreement, at=decision.at)
        self._unreported = None
        await self.report()

    async def _pin(self, engine: TwoVersionEngine, wanted: Announced | None) -> None:
        """Holds the version of an evaluation, which may be requested before or after it is the newest one."""
        version = None if wanted is None else wanted.version
        if version == self._pinned or self.version is None:
            return
        if wanted is None:
            await engine.unpin()
        else:
            held = (await self._engine.load()).versions_loaded
            if wanted.version not in held:
                await self._bring(wanted)
            await engine.pin(wanted.version, "" if version in held else str(self._path_of(wanted)))
        self._pinned = version
        await self.report()

    def _path_of(self, announced: Announced) -> Path:
        path = (self._run_dir / announced.path).resolve()
        if not path.is_relative_to(self._run_dir.resolve()):
            raise WeightsRefusedError(f"{announced.path} is not within the run's directory.")
        return path

    async def _repeat(self, act: Callable[[], Awaitable[None]], every_s: float) -> None:
        """The task boundary: logs errors and repeats the act after growing pauses. Only a dead engine ends it."""
        wait_s = every_s
        while True:
            try:
                async with asyncio.timeout(self._load_within_s + ACT_AT_MOST_S):
                    await act()
                wait_s = every_s
            except EngineGoneError:
                raise
            except Exception:
                log.exception("%s of %s failed", act.__name__, self._service.id)
                wait_s = min(MAX_WAIT_S, 2 * wait_s)
            await asyncio.sleep(wait_s)
