"""Scores records again when operators ask for it.

Invariants:
- It scores the stored episode, with the present scorer and agent loop.
- A scorer that cannot judge is called again a few times; then the record keeps its score, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentrl.environments.rubric import Score
from agentrl.errors import DiskError
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import Actor
from agentrl.rollout.scorers import UnscoredError
from agentrl.store import groups, rescoring
from agentrl.store.claims import Claim
from agentrl.store.database import Database, StoreError
from agentrl.store.owners import Lease

log = logging.getLogger("sampler")
LOOK_EVERY_S = 1.0
AT_ONCE = 8
TRIES_AFTER_S = (1.0, 4.0, 15.0, 0.0)
"""The pauses after a scorer could not judge; after the last one the record keeps its score."""
ScoreAgain = Callable[[Claim], Awaitable[Score]]


class Rescorer:
    def __init__(self, database: Database, lease: Lease, rule: GroupRule, score: ScoreAgain) -> None:
        """`score` judges the stored episode of a record."""
        self._database = database
        self._lease = lease
        self._rule = rule
        self._score = score
        self.paused = False
        """True while it takes no further record."""

    async def run(self) -> None:
        """Runs until cancelled. The records that it holds then are given back when this owner is gone."""
        while True:
            try:
                taken = await self._take()
                await asyncio.gather(*map(self._score_again, taken))
            except (StoreError, DiskError) as away:
                log.warning("no record is scored again: %s", away)
                taken = []
            if len(taken) < AT_ONCE:
                await asyncio.sleep(LOOK_EVERY_S)

    async def _take(self) -> list[Claim]:
        taken: list[Claim] = []
        while not self.paused and self._lease.valid and len(taken) < AT_ONCE:
            claim = await rescoring.claim(self._database, self._lease.incarnation)
            if claim is None:
                break
            taken.append(claim)
        return taken

    async def _score_again(self, claim: Claim) -> None:
        owner = self._lease.incarnation
        why = ""
        for pause_s in TRIES_AFTER_S:
            try:
                found = await self._score(claim)
            except UnscoredError as cannot:
                why = str(cannot)
                await asyncio.sleep(pause_s)
                continue
            except (StoreError, DiskError):
                raise
            except Exception as broken:
                # The boundary: one record never keeps the others from their scores.
                log.exception("%s cannot be scored again", claim.record.id)
                why = f"it cannot be scored: {broken!r}"
                break
            why = await rescoring.finish(
                self._database, claim.record, owner, found.value, self._rule, parts=found.parts
            )
            if why:
                log.info("%s keeps its score: %s", claim.record.id, why)
            else:
                await groups.close(self._database, claim.task.id, self._rule, Actor.SAMPLER)
            return
        await rescoring.give_up(self._database, claim.record, owner, why)
