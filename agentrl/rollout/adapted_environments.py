"""Environments of other packages as agent loops with their own scores; `agentrl.adapters` has their programs.

Invariants:
- The loop of such an environment has the environment's name. It passes the model's turns to the package, and the
  package's answers to the model.
- The package scores only what is stored, the texts of the turns, so any process can score.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from agentrl.adapters.player import Player, PlayerError
from agentrl.adapters.player_process import PlayerProcess, Program, Start
from agentrl.adapters.sources import Source, source_of
from agentrl.config.data_plane import Environment
from agentrl.config.run import RunConfig
from agentrl.environments.rubric import Score
from agentrl.policies.outcomes import Outcome
from agentrl.rollout import scorers
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.declared_environments import only_whole
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.harbor_agent import harbor_loop
from agentrl.rollout.sandboxed_starts import Confined, confined
from agentrl.rollout.scorers import UnscoredError, register_scorer
from agentrl.rollout.tool_agent import ToolAgent


def register_adapted(config: RunConfig) -> None:
    """Register the environments of a run that come from other packages, under their names."""
    for name, environment in config.environments.items():
        source = source_of(environment.code)
        if source is None or source.kind == "mcp":
            continue
        register_loop(name)(harbor_loop(name) if source.kind == "harbor" else _loop_of(name, config))
        register_scorer(name)(only_whole(name))


def player_of(environment: Environment) -> Player:
    source = source_of(environment.code)
    assert source is not None
    return Player(
        source=source,
        python=environment.python,
        arguments=environment.arguments,
        rows=environment.rows,
        held_out=environment.held_out,
    )


def _loop_of(name: str, config: RunConfig) -> type[AgentLoop]:
    environment = config.environments[name]
    player = player_of(environment)
    program = player if environment.sandbox.kind == "none" else _PlayerInSandbox(player, confined(name, config))

    class AdaptedLoop(ToolAgent):
        resumable = player.source.facts.resumable

        @classmethod
        async def prepare(cls) -> None:
            await _process_of(program).ask("alive")

        async def run(self, episode: Episode) -> Outcome:
            process, key = _process_of(program), uuid.uuid4().hex
            try:
                await process.ask("begin", episode=key, row=episode.task.extra)
                conversation = Conversation(episode)
                reply = await conversation.chat()
                while True:
                    following = await process.ask("answer", episode=key, text=reply.text)
                    if isinstance(following, dict) and following.get("done"):
                        return self.ending(reply.text, episode.task)
                    if not isinstance(following, dict) or not isinstance(following.get("message"), str):
                        raise program.error(f"it answers a turn with {following!r:.200}, which is no message")
                    reply = await conversation.chat(following["message"])
            finally:
                process.send("end", episode=key)

        async def evaluate_record(self, episode: EndedEpisode) -> float | Score:  # type: ignore[override]
            if episode.task.scorer != name:
                answer = self.answer(episode.texts, episode.task)
                return await scorers.score(episode.task.scorer, answer, episode.task)
            return await _scored(program, episode)

    AdaptedLoop.__name__ = AdaptedLoop.__qualname__ = name
    return AdaptedLoop


async def _scored(program: Program, episode: EndedEpisode) -> Score:
    try:
        found = await _process_of(program).ask("score", row=episode.task.extra, texts=list(episode.texts))
    except PlayerError as cannot:
        raise UnscoredError(str(cannot)) from cannot
    return Score(float(found["value"]), {name: float(part) for name, part in found["parts"].items()})


@dataclass(frozen=True, slots=True)
class _PlayerInSandbox:
    """The program of a package in the sandbox of its environment."""

    player: Player
    confined: Confined

    @property
    def source(self) -> Source:
        return self.player.source

    @property
    def python(self) -> str:
        return self.player.python

    @property
    def command(self) -> list[str]:
        return self.player.command

    def start(self) -> Start:
        return self.confined.start(self.command, self.player.program)

    def error(self, what: str) -> PlayerError:
        plain = self.player.error(what)
        return PlayerError(plain.message, hint=plain.hint or self.confined.lacking(what))


def _process_of(program: Program) -> PlayerProcess:
    """The process for this event loop. The same package in another sandbox, or in none, has another process."""
    return scorers.helper_of(repr(program), lambda: PlayerProcess(program))
