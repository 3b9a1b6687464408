"""What an engine unit does beside generating: it pulls publications, and tells what it serves and how the canary
compared.

Invariants: weights serve only after their files and their canary agreed with what was announced; a publication that is
refused is refused once, with the reason, and the version before serves on; an update is made only with a permit, so
that not all engines update at once, and an engine that does not serve while it loads is out of routing before it
begins; the newest publication that was not refused is taken, what it overtook is skipped; an engine that does not come
to an end with loading ends, so that another takes its place. The database may be away: then the engine serves what it
has, and reports again when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from agentrl.engines.interface import EngineGoneError, Load, WeightsRefusedError
from agentrl.engines.manifest import Agreement, Manifest
from agentrl.store.documents import Service

log = logging.getLogger("engine")
REPORT_EVERY_S = 2.0
LOOK_EVERY_S = 0.2
LOOK_FOR_PINS_EVERY_S = 1.0
"""An evaluation takes far longer than that."""
ACT_AT_MOST_S = 60.0
"""One look beside loading: questions to the store and to the engine."""
MOST_WAIT_S = 5.0
LEAVE_WITHIN_S = 5.0
State = Literal["starting", "loading", "serving", "draining", "gone"]


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reads of a Publication."""

    version: int
    path: str
    """Relative to the run's directory."""
    manifest: Manifest


class Publications(Protocol):
    """The store's side. What its methods raise is logged, and they are asked again."""

    async def newest(self, than: int | None, *, but: Collection[int] = ()) -> Announced | None:
        """The newest publication that engines should serve, if it is newer than this version and none of `but`."""
        ...

    async def pinned(self) -> Announced | None:
        """The version that an evaluation wants beside the newest, if there is one."""
        ...

    async def permit(self, version: int, engine: str) -> bool:
        """May this engine update to it now? At least half of the engines should stay routed."""
        ...

    async def served(self, version: int, engine: str, agreement: Agreement | None) -> None:
        """This engine serves it, and so its canary compared; gives the permit back."""
        ...

    async def refused(self, version: int, engine: str, why: str) -> None:
        """This engine does not take it; gives the permit back."""
        ...

    async def report(self, service: Service) -> None: ...


class Target(Protocol):
    """The engine that is updated."""

    @property
    def agreement(self) -> Agreement | None:
        """How the canary of the weights that serve compared."""
        ...

    async def update(self, path: str, version: int, manifest: Manifest | None = None) -> None: ...

    async def load(self) -> Load: ...


class Beside(Protocol):
    """An engine that serves on while it loads, and can hold a second version for an evaluation."""

    async def pin(self, version: int, path: str = "") -> None: ...

    async def unpin(self) -> None: ...


class _Decision(NamedTuple):
    version: int
    why: str = ""
    """Of a refusal."""
    agreement: Agreement | None = None


class Puller:
    """One engine's following of the publications."""

    def __init__(
        self,
        target: Target,
        publications: Publications,
        me: Service,
        *,
        run_dir: Path,
        beside: Beside | None = None,
        evaluates: bool = True,
        load_within_s: float = 600.0,
        on_version: Callable[[int], None] = lambda version: None,
        on_canary: Callable[[Agreement], None] = lambda agreement: None,
        on_serving: Callable[[str], None] = lambda serving: None,
        on_news: Callable[[str], None] = lambda sentence: None,
        waiting_for: Callable[[int], AbstractContextManager[None]] = lambda version: contextlib.nullcontext(),
    ) -> None:
        """`me` says who and where this engine is; its state and version are kept here.

        Without `beside` the engine holds one version. Then it serves the version of an evaluation instead of the
        newest, if it is the one that `evaluates`. `waiting_for` is entered while a version is loaded.
        """
        self._target = target
        self._publications = publications
        self._me = me
        self._run_dir = run_dir
        self._beside = beside
        self._evaluates = evaluates
        self._load_within_s = load_within_s
        self._on_version = on_version
        self._on_canary = on_canary
        self._on_serving = on_serving
        self._on_news = on_news
        self._waiting_for = waiting_for
        self._refused: set[int] = set()
        self._untold: _Decision | None = None
        """What the store has not got yet."""
        self._evaluated: Announced | None = None
        self._pinned: int | None = None
        self.version: int | None = None
        self.state: State = "starting"

    async def follow(self) -> None:
        """Pull and report until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(self.look, LOOK_EVERY_S), name="pull weights")
            tasks.create_task(self._again(self.look_for_pins, LOOK_FOR_PINS_EVERY_S), name="pin weights")
            tasks.create_task(self._again(self.report, REPORT_EVERY_S), name="report engine")

    async def look(self) -> None:
        """One look at the publications, and what follows from it."""
        await self._tell()
        wanted = await self._wanted()
        if wanted is not None and await self._publications.permit(wanted.version, self._me.id):
            await self._take(wanted)
            await self._tell()

    async def look_for_pins(self) -> None:
        """See what an evaluation wants, and hold it."""
        self._evaluated = await self._publications.pinned()
        if self._beside is not None:
            await self._pin(self._beside, self._evaluated)

    async def _wanted(self) -> Announced | None:
        """What to load now, if anything."""
        evaluated = self._evaluated if self._beside is None and self._evaluates else None
        if evaluated is not None and evaluated.version not in self._refused:
            return evaluated if evaluated.version != self.version else None
        return await self._publications.newest(self.version, but=self._refused)

    async def report(self) -> None:
        load = await self._target.load()
        await self._publications.report(
            msgspec.structs.replace(
                self._me,
                state=self.state,
                version=self.version,
                versions_loaded=list(load.versions_loaded),
                slots=load.slots,
                running=load.running + load.waiting,
            )
        )

    async def leave(self, state: Literal["draining", "gone"]) -> None:
        """Say at once that no calls should come any more; if the store is away, silence will say it."""
        self.state = state
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self.report()
        except Exception:
            log.exception("%s cannot say that it is %s", self._me.id, state)

    async def _take(self, announced: Announced) -> None:
        version = announced.version
        self._on_news(f"loading version {version}")
        self._on_serving(f"loading(v{version})" if self.version is None else f"loading(v{self.version}→v{version})")
        await self._step_aside()
        try:
            with self._waiting_for(version):
                async with asyncio.timeout(self._load_within_s):
                    await self._target.update(str(self._path_of(announced)), version, announced.manifest)
        except WeightsRefusedError as wrong:
            self._refuse(version, wrong.message)
        except TimeoutError:
            raise EngineGoneError(f"Version {version} was not loaded within {self._load_within_s:g} s.") from None
        else:
            self.version = version
            self._on_version(version)
            self._on_news(f"serves version {version}")
            agreement = self._target.agreement
            if agreement is not None and agreement.tokens:
                self._on_canary(agreement)
            self._untold = _Decision(version, agreement=agreement)
        self._serve_on()

    async def _step_aside(self) -> None:
        """Nobody should call an engine that cannot answer while it loads."""
        if self._beside is None and self.state == "serving":
            self.state = "loading"
            await self.report()

    def _serve_on(self) -> None:
        if self.version is not None:
            self.state = "serving" if self.state in ("starting", "loading") else self.state
            self._on_serving(f"serving(v{self.version})")
        else:
            self._on_serving("")

    def _refuse(self, version: int, why: str) -> None:
        log.warning("version %d is refused: %s", version, why)
        self._refused.add(version)
        serving = "nothing serves" if self.version is None else f"version {self.version} serves on"
        self._on_news(f"refused version {version} ({why}); {serving}")
        self._untold = _Decision(version, why)

    async def _tell(self) -> None:
        """Tell the last decision, again and again until the store has it."""
        if (decision := self._untold) is None:
            return
        if decision.why:
            await self._publications.refused(decision.version, self._me.id, decision.why)
        else:
            await self._publications.served(decision.version, self._me.id, decision.agreement)
        self._untold = None
        await self.report()

    async def _pin(self, beside: Beside, wanted: Announced | None) -> None:
        """Hold what an evaluation wants. It is asked for before the newest is served, or after."""
        version = None if wanted is None else wanted.version
        if version == self._pinned or self.version is None:
            return
        if wanted is None:
            await beside.unpin()
        else:
            held = (await self._target.load()).versions_loaded
            await beside.pin(wanted.version, "" if version in held else str(self._path_of(wanted)))
        self._pinned = version
        await self.report()

    def _path_of(self, announced: Announced) -> Path:
        path = (self._run_dir / announced.path).resolve()
        if not path.is_relative_to(self._run_dir.resolve()):
            raise WeightsRefusedError(f"{announced.path} is not within the run's directory.")
        return path

    async def _again(self, act: Callable[[], Awaitable[None]], every_s: float) -> None:
        """The boundary: what fails is logged and tried again, more rarely; only a dead engine ends it."""
        wait_s = every_s
        while True:
            try:
                async with asyncio.timeout(self._load_within_s + ACT_AT_MOST_S):
                    await act()
                wait_s = every_s
            except EngineGoneError:
                raise
            except Exception:
                log.exception("%s of %s failed", act.__name__, self._me.id)
                wait_s = min(MOST_WAIT_S, 2 * wait_s)
            await asyncio.sleep(wait_s)
