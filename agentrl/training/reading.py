"""From a leased Step to its batch: what is read of the store for it."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from agentrl.policies.version_tree import VersionTree
from agentrl.store import publications, trajectories
from agentrl.store.database import Database
from agentrl.store.documents import Step
from agentrl.training import batch_assembly
from agentrl.training.batch_selection import Look
from agentrl.training.trainer_knobs import Plan


async def batch_of(database: Database, leased: Step, look: Look, plan: Plan, tree: VersionTree) -> batch_assembly.Made:
    wanted = set(leased.records)
    data = [one for name in leased.tasks for one in look.ready[name].records if one.id in wanted]
    calls = await trajectories.calls_of(database, [one.id for one in data])
    flat = [call for those in calls.values() for call in those]
    made = batch_assembly.make_batch(
        leased.step,
        leased.base_version,
        data,
        flat,
        tree,
        plan.freshness,
        environments={name: look.ready[name].task.environment for name in leased.tasks},
        normalise=plan.normalise,
    )
    if not plan.decays_by_time:
        return made
    ages_s = await publications.ages_s(database, made.batch.ages, leased.leased_at)
    return replace(made, batch=msgspec.structs.replace(made.batch, ages_s=ages_s))
