"""One run of an agent loop in an episode: what it is made of, and why it ended.

Invariants: the deadline of an episode covers all that the loop does; whatever the code of a user raises is one outcome
with one sentence. This module knows nothing about claims, scores or the end of a record, so an episode can be tried
without them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from agentrl.chat.template import Template
from agentrl.config.data_plane import Rollout
from agentrl.config.run import RunConfig
from agentrl.environments.user_tasks import FATAL, UserTasks, uncancelled
from agentrl.policies import outcomes
from agentrl.policies.outcomes import Outcome, tool_call_within_s
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.episode import Episode, Limits
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import EndedError, EpisodeExit
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.model_calls import ModelCalls, Wait
from agentrl.rollout.other_models import Helpers
from agentrl.rollout.service_directory import ServiceDirectory
from agentrl.rollout.shown_images import EpisodeImages, ShownImages
from agentrl.rollout.tool_calls import ToolCalls
from agentrl.rollout.user_code_faults import described, shown
from agentrl.store.documents import Task

log = logging.getLogger("sampler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an episode needs around it."""

    config: RunConfig
    directory: ServiceDirectory
    template: Template
    vocabulary: int
    wait: Wait
    images: ShownImages
    helpers: Helpers | None = None
    """Other models; None if there are none."""


def make_episode(
    around: Surroundings, task: Task, recorder: Recorder, settings: Rollout, clock: EpisodeClock
) -> tuple[Episode, ModelCalls, ToolCalls]:
    environment = around.config.environments[task.environment]
    servers = [around.config.tools[name] for name in task.servers if name in around.config.tools]
    longest_s = settings.tool_s or max((float(server.timeout_s) for server in servers), default=0.0)
    images = EpisodeImages(around.images)
    model_calls = ModelCalls(
        around.directory,
        recorder,
        call_s=settings.call_s,
        vocabulary=around.vocabulary,
        wait=around.wait,
        clock=clock,
    )
    tool_calls = ToolCalls(
        around.directory,
        recorder,
        task.servers,
        repeatable=[name for name, server in around.config.tools.items() if server.try_again],
        effects={name: server.effects for name, server in around.config.tools.items() if server.session != "shared"},
        images=images,
        tool_s=settings.tool_s,
        wait_s=tool_call_within_s(longest_s),
        stateless=all(server.session == "shared" for server in servers),
        wait=around.wait,
        parked=clock.parked,
    )
    episode = Episode(
        task,
        environment,
        limits=_limits(task.sampling, around.config, settings.max_turns or environment.max_turns),
        template=around.template,
        recorder=recorder,
        model_calls=model_calls,
        tool_calls=tool_calls,
        images=images,
        random=around.config.training.random,
        others=around.helpers.in_episode(recorder.record.id, clock, around.wait) if around.helpers else None,
    )
    return episode, model_calls, tool_calls


async def act(
    loop: AgentLoop, episode: Episode, tool_calls: ToolCalls, settings: Rollout, clock: EpisodeClock
) -> EndedError:
    """Run the loop; the answer is why it ended."""
    tasks = UserTasks()
    try:
        async with clock.running():
            await episode.prepare()
            await tool_calls.prepare()
            with tasks.noted():
                outcome = await loop.run(episode)
    except EndedError as ended:
        return ended
    except EpisodeExit:
        raise
    except asyncio.CancelledError as raised:
        return _loop_failed(episode, uncancelled(raised))
    except BaseExceptionGroup as several:
        # The loop had tasks of its own: the first error is the reason.
        if isinstance(exit_ := _first_exit(several), EndedError):
            return exit_
        if exit_ is not None:
            raise exit_ from several
        return _loop_failed(episode, several)
    except FATAL as fatal:
        return _loop_failed(episode, fatal)
    except Exception as broken:  # noqa: BLE001 - logged where the answer is made
        # The boundary to code of users. Only a timeout of the clock is the deadline of the episode.
        if isinstance(broken, TimeoutError) and clock.expired:
            return _timed_out(episode, settings)
        return _loop_failed(episode, broken)
    finally:
        episode.stop()
        episode.left_behind = tasks.left
        await tasks.end()
    try:
        return EndedError(Outcome(outcome))
    except ValueError:
        returned = "nothing" if outcome is None else shown(repr(outcome))
        return EndedError(Outcome.LOOP_FAILED, f"`run` returned {returned}, and must return an Outcome"[:2000])


def _timed_out(episode: Episode, settings: Rollout) -> EndedError:
    generated = episode.recorder.own_tokens
    outcome = outcomes.at_deadline(settings.episode_timeout_means, generated)
    return EndedError(outcome, f"it took longer than {settings.episode_s:g} s")


def _limits(sampling: dict[str, object], config: RunConfig, max_turns: int) -> Limits:
    """The limits that were frozen at admission; those of the configuration if an older document has none."""

    def number(name: str, default: float) -> float:
        value = sampling.get(name)
        return float(value) if isinstance(value, int | float) else default

    return Limits(
        max_turns=max_turns,
        max_tokens=int(number("max_tokens_per_call", config.sampling.max_tokens)),
        context=int(number("context", config.sampling.context)),
        rule=SamplingRule.of({"temperature": float(config.sampling.temperature), **sampling}),
    )


def _loop_failed(episode: Episode, broken: BaseException) -> EndedError:
    log.error("the agent loop of %s failed", episode.recorder.record.id, exc_info=broken)
    failed = EndedError(Outcome.LOOP_FAILED, described(broken)[:2000])
    failed.__cause__ = broken
    return failed


def _first_exit(several: BaseExceptionGroup[BaseException]) -> EpisodeExit | None:
    found = several.subgroup(EpisodeExit)
    inner: BaseException | None = found
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner if isinstance(inner, EpisodeExit) else None
