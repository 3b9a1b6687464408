"""Shortcuts through the life of a Task, for tests that begin in its middle. They use only functions of the store."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.policies.group_closing import GroupRule
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.store import claims, document_ids, documents, groups, owners, steps, tasks
from agentrl.store.claims import Claim, Ending, LastClaims
from agentrl.store.database import Database, Plain
from agentrl.store.documents import DBRecordData, Step, Task
from agentrl.store.weight_documents import Publication
from agentrl.tokens.spans import Span

RULE = GroupRule()


def row(number: int, *, environment: str = "shop", purpose: str = "train", version: int | None = None) -> Task:
    return Task(
        id=document_ids.task_id(environment, "train", 0, number),
        environment=environment,
        row=number,
        place=number,
        purpose=purpose,
        query=f"what costs item {number}?",
        answer=str(number),
        version=version,
    )


async def queue(db: Database, count: int, *, environment: str = "shop", purpose: str = "train") -> list[Task]:
    rows = [row(number, environment=environment, purpose=purpose) for number in range(count)]
    await tasks.insert(db, rows)
    return rows


async def admit(db: Database, task: Task, *, n: int = 4, deadline_s: float = 600, rounds_max: int = 3) -> bool:
    frozen = {"temperature": 1.0}
    return bool(await tasks.admit(db, [task], n=n, sampling=frozen, deadline_s=deadline_s, rounds_max=rounds_max))


async def sampler(db: Database, name: str = "sampler-0.1") -> str:
    await owners.Lease(db, name, unit=name.partition(".")[0], role="sampler").open()
    return name


async def claim_one(
    db: Database,
    owner: str,
    *,
    environments: Sequence[str] | None = None,
    resumable: bool = False,
    last: LastClaims | None = None,
) -> Claim | None:
    """Claim one record, like a sampler with room for one episode. Returns None if no record is open."""
    claimed = await claims.claim_several(db, owner, 1, environments=environments, resumable=resumable, last=last)
    return claimed[0] if claimed else None


async def end(db: Database, claim: Claim, score: float, *, version: int = 1, tokens: int = 5) -> bool:
    """Finish and score what was claimed."""
    record, owner = claim.record.id, claim.record.owner
    ending = Ending(
        outcome=Outcome.ANSWERED,
        turns=1,
        generated_tokens=tokens,
        oldest_version=version,
        newest_version=version,
        versions=[version],
    )
    if not await claims.finish(db, record, owner, ending):
        return False
    data = DBRecordData(
        id=record,
        task=claim.task.id,
        spans=[Span(-1, "model", 0, 0, tokens)],
        trained_tokens=tokens,
        oldest_version=version,
        versions=[version],
    )
    return await claims.score(db, record, owner, score, data)


async def run_group(db: Database, scores: Sequence[float], *, owner: str = "sampler-0.1", version: int = 1) -> str:
    """Claim, end and score as many records as there are scores, then close the group of the last one."""
    task = ""
    for score in scores:
        claim = await claim_one(db, owner)
        assert claim is not None
        assert await end(db, claim, score, version=version)
        task = claim.task.id
    return await groups.close(db, task, RULE, Actor.SAMPLER)


async def ready_tasks(
    db: Database, count: int, *, scores: Sequence[float] = (0.0, 1.0), version: int = 1
) -> list[Task]:
    """Create this many tasks with closed groups."""
    await sampler(db)
    rows = await queue(db, count)
    for task in rows:
        assert await admit(db, task, n=len(scores))
        assert await run_group(db, scores, version=version) == "ready"
    return [await tasks.get(db, task.id) for task in rows]


def step_of(
    lineage: str, number: int, chosen: Sequence[Task], *, filtered: Sequence[Task] = (), base_version: int = 0
) -> Step:
    return Step(
        id=document_ids.step_id(lineage, number),
        lineage=lineage,
        step=number,
        base_version=base_version,
        bounds={task.environment: 2 for task in chosen} if base_version else {},
        tasks=[task.id for task in chosen],
        filtered=[task.id for task in filtered],
        records=[share.record for task in chosen for share in task.shares if share.advantage is not None],
    )


async def commit(db: Database, lineage: str, number: int, chosen: Sequence[Task], *, base_version: int = 0) -> Step:
    leased = await steps.lease(db, step_of(lineage, number, chosen, base_version=base_version))
    assert leased is not None
    assert await steps.commit(db, leased.id, {"loss": 0.1})
    return leased


async def publication(db: Database, version: int) -> Publication:
    found = await db.find_one("Publication", {"_id": version})
    assert found is not None
    return documents.load(Publication, found)


async def explained(db: Database, command: Plain) -> Plain:
    """The plan of the server for a command such as `find`, `count` or `aggregate`, which is not executed."""
    plan: Plain = await db._database.command("explain", command, verbosity="queryPlanner")
    return plan
