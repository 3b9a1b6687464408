"""Which engines a sampler calls."""

from __future__ import annotations

from typing import Any

from agentrl.rollout.service_directory import ServiceDirectory
from agentrl.store import lineages, service_registry
from agentrl.store.database import Database
from agentrl.store.documents import Service


def no_toolbox(url: str) -> Any:
    raise AssertionError(url)


async def test_engines_at_versions_of_an_abandoned_lineage_are_not_called(db: Database) -> None:
    directory = ServiceDirectory(db, "token", no_toolbox, max_lag=2)
    for slot, version in enumerate((118, 120, 121)):
        url, unit = f"http://127.0.0.1:{slot + 1}", f"engine-{slot}"
        engine = Service(id=f"{unit}.1", unit=unit, kind="engine", url=url, state="serving", version=version, slots=8)
        await service_registry.report(db, engine)

    async def called() -> set[int | None]:
        await directory.look()
        chosen = [directory.engine(f"conversation {number}") for number in range(64)]
        return {one.version for one in chosen if one is not None}

    assert await called() == {120, 121}
    lineage = await lineages.begin(db, "trainer-0.2", parent_checkpoint="c", after_step=100)
    assert await called() == {120, 121}, "it has not published yet"
    await lineages.set_first_version(db, lineage.id, 121)
    assert await called() == {121}
    pinned = directory.engine("evaluation", version=120)
    assert pinned is not None
    await directory.close()


async def test_the_connections_of_an_engine_go_with_it_once_its_calls_have_ended(db: Database) -> None:
    directory = ServiceDirectory(db, "token", no_toolbox)
    service = Service(id="engine-0.1", unit="engine-0", kind="engine", url="http://127.0.0.1:1", version=1, slots=8)
    service.state = "serving"
    await service_registry.report(db, service)
    await directory.look()
    engine = directory.engine("conversation")
    assert engine is not None
    before = directory.client(engine)
    directory.sent(engine)
    service.state = "gone"
    await service_registry.report(db, service)
    await directory.look()
    assert directory.engine("conversation") is None
    assert directory.client(engine) is before, "the connection stays open for a running call"
    directory.answered(engine)
    await directory.look()
    assert directory.client(engine) is not before
    await directory.close()
