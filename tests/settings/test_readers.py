"""Who reads each field of the run file, found out on the processes themselves.

The marks `read_by` on the fields decide which units a change replaces and which variables they get. A mark that lacks a
role would let two processes work by different values; one too many would replace units for nothing.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import policy_rules, tool_lock
from agentrl.config.readers import readers
from agentrl.config.run import RunConfig
from agentrl.control.commands.data_plane_groups import STARTS_PROGRAMS
from agentrl.engines.openai_engine import OpenAiEngine
from agentrl.engines.sglang import launch_arguments
from agentrl.errors import AgentrlError
from agentrl.http.free_ports import free_port
from agentrl.protocol.rows import KnobRow
from agentrl.protocol.specs import Role
from agentrl.rollout.adapted_environments import player_of
from agentrl.training import recorded_episodes, resume
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment
from daemons.engine import only_evaluates
from tests import small_run
from tests.e2e.running import Run, running
from tests.settings.recording import FOLDER_VARIABLE, WHOLE, Recorder, read_settings, recorded
from tests.waiting import eventually

UP_WITHIN_S = 400.0
ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIVE = {
    "models": {"judge": [{"url": f"{NOWHERE}/v1", "model": "a"}]},
    "judges": {"right": {"model": "judge"}},
    "summaries": {"on": False, "model": "judge"},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    reads = tmp_path / "reads"
    reads.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(reads))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'settings' / 'hook'}:{ROOT}")
    monkeypatch.setenv("SOME_TOKEN", "secret" * 8)
    # The default times, because libraries of this size start slowly on a busy machine.
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


def everything(folder: Path) -> dict[str, Any]:
    """A data plane that uses as many settings as one run can."""
    small_run.write_data(folder)
    (folder / "functions.py").write_text('def double(x: int) -> int:\n    """Twice x."""\n    return 2 * x\n')
    (folder / "workspace").mkdir()
    (folder / "apart.jsonl").write_text('{"query": "?", "answer": "!"}\n' * 8)
    (folder / "apart.py").write_text(
        "import agentrl as rl\n\n@rl.agent\nasync def agent(episode):\n    await episode.chat()\n\n"
        'rl.Environment("apart", dataset="apart.jsonl", agent=agent)\n'
    )
    plane = small_run.data_plane(steps=0)
    shop = plane["environments"]["shop"]
    shop |= {"difficulty": {"least": 0.0}, "repetition": {"calls": 1, "means": "warn"}}
    shop |= {"context": {"strategy": "sliding_window"}, "watchers": ["exact"]}
    plane["environments"]["apart"] = {"code": "apart.py", "sandbox": {"required": False}}
    plane["tools"] |= {
        "functions": {"functions": "functions.py"},
        "files": {"shipped": "files", "workspace": "workspace"},
        "search": {"shipped": "search", "corpus": ["functions.py"]},
        "http": {"url": f"{NOWHERE}/mcp", "session": "shared", "token": "env:SOME_TOKEN"},
        "plain": {"mcpapi": f"{NOWHERE}/mcpapi"},
        "older": {"sse": f"{NOWHERE}/sse"},
    }
    mixed = {"shop": 1, "apart": 1}
    ending = {"environment": "shop", "score": 0.0, "groups": 1}
    plane["curriculum"] = [{"mix": mixed, "until": ending}, {"mix": mixed}]
    plane["training"] |= {
        "strategy": "decay",
        "lora": {"rank": 2},
        "optimizer": "adamw",
        "schedule": {"kind": "linear", "steps": 1000},
        "curves": {"mlflow": {"server": NOWHERE}, "wandb": {"project": "none", "mode": "offline"}},
    }
    plane["evaluation"]["every"] = 1
    plane["reward_watch"] = {"every_s": 1.0}
    plane["tracing"] = {"endpoint": f"{NOWHERE}/v1/traces", "token": "env:SOME_TOKEN"}
    plane["outside"] = {"port": free_port(), "tokens": {"somebody": "env:SOME_TOKEN"}}
    return plane | copy.deepcopy(LIVE)


ONLY_THERE = {
    "engine": {"engines.python", "engines.at_update", "engines.model"},
    "sampler": {"environments.*.context.model"},
    "toolbox": {
        *("tools.*.crash_means", "tools.*.effects", "tools.*.sandbox.image", "tools.*.timeout_means"),
        *("outside.all_sessions", "outside.calls", "tools.*.try_again"),
    },
    "trainer": {"model.images.max_pixels", "training.warmup.recorded.most"},
}
"""Settings that are read only while a server of SGLang or vLLM starts or gets weights, an API of others answers,
another model summarises, a container starts, a tool call fails or is replayed, a program outside of the run opens a
session, a model reads images, or records of another run are learned from."""


def test_each_setting_is_read_by_the_roles_that_it_declares_and_by_no_other(run: Run, tmp_path: Path) -> None:
    declared: dict[str, set[str]] = {role.value: set() for role in Role}
    for path, mark in readers().items():
        for role in mark.roles | mark.shown_to:
            declared[role.value].add(path)
    for role in STARTS_PROGRAMS:
        declared[role.value].add(WHOLE)
    elsewhere = read_without_a_run(tmp_path)

    run.config |= everything(tmp_path)
    run.write()
    run.cli("up", str(run.file), "--yes", "--no-wait", within_s=UP_WITHIN_S)
    for unit in ("steward-0", "sampler-0", "trainer-0", "engine-0", "toolbox-0"):
        run.wait_state(unit, "ready", within_s=UP_WITHIN_S)
    preview(run)
    run.config["summaries"]["on"] = True
    run.write()
    run.cli("up", str(run.file), "--yes", "--no-wait", within_s=UP_WITHIN_S)
    assert set(run.incarnations().values()) == {1}, "a change of these sections replaces nothing"
    assert run.cli("models")
    eventually(lambda: run.client.list_calls().rows, within_s=UP_WITHIN_S, what="a tool call")
    call = run.client.list_calls().rows[0]["id"]
    run.cli("replay", call, "--dry-run")

    def read() -> dict[str, set[str]]:
        of_units = read_settings(tmp_path / "reads")
        return {role: paths | of_units.get(role, set()) for role, paths in elsewhere.items()}

    def nothing_is_missing() -> bool:
        missing = {role: sorted(declared[role] - paths - ONLY_THERE.get(role, set())) for role, paths in read().items()}
        assert not any(missing.values()), f"declared and not read: {missing}"
        return True

    eventually(nothing_is_missing, within_s=UP_WITHIN_S, what="reads of all declared settings")
    # A change of `mongo` replaces every unit, and its variable goes to no unit, so its fields have no marks.
    undeclared = {
        role: sorted(path for path in paths - declared[role] if not path.startswith("mongo."))
        for role, paths in read().items()
    }
    assert not any(undeclared.values()), f"read and not declared: {undeclared}"


def preview(run: Run) -> None:
    """Preview a change of each knob of a unit. Some are refused, for example because they contradict others."""
    for knob in run.client.knobs():
        if not knob.owner:
            continue
        with contextlib.suppress(AgentrlError):
            run.client.preview("tune", {"name": knob.name, "value": changed(knob), "note": "a test"})


def changed(knob: KnobRow) -> Any:
    if knob.choices:
        return next(choice for choice in knob.choices if choice != knob.value)
    if isinstance(knob.value, bool):
        return not knob.value
    return knob.value + 1 if isinstance(knob.value, int) else knob.value * 0.9 + 0.01


def read_without_a_run(folder: Path) -> dict[str, set[str]]:
    """What the functions of the daemons read that run only with a GPU, a server or another run."""
    read: dict[str, set[str]] = {role.value: set() for role in Role}

    @contextlib.contextmanager
    def by(role: Role) -> Iterator[None]:
        with recorded(Recorder(read[role.value].add)):
            yield

    def config(**sections: Any) -> RunConfig:
        shop = {"environments": {"shop": {"dataset": "train.jsonl"}}}
        return RunConfig.model_validate({"name": "other", "model": {"build": "tiny"}, **shop, **sections})

    with by(Role.ENGINE):
        engines = config(engines={"kind": "sglang"}).engines
        launch_arguments.arguments(engines, context=8, path="", version=1)
        launch_arguments.way_of(engines)
        api = {"kind": "openai", "url": NOWHERE, "model": "a"}
        OpenAiEngine(config(engines=api, training={"frozen": True}).engines, context=8)
        place = UnitEnvironment(unit="engine-0", group="engine", slot=0, incarnation=1, run_dir=folder)
        only_evaluates(Unit(UnitParts(place)), config(evaluation={"engine": "own"}))
    with by(Role.SAMPLER):
        game = {"game": {"code": "gymnasium:FrozenLake-v1", "dataset": "train.jsonl"}}
        player_of(config(environments=game).environments["game"])
    with by(Role.TRAINER):
        learned = config(training={"loss": "ppo"})
        policy_rules.critic(learned.training)
        resume.critic_rate(learned)
        warmup = {"recorded": {"run": "none", "filter": "score >= 1"}, "steps": 1}
        wanted = config(training={"warmup": warmup})
        with pytest.raises(AgentrlError):
            recorded_episodes.choose(wanted, wanted.training.warmup.recorded)
    with by(Role.TOOLBOX):
        for packages in ({"python": "a==1"}, {"npm": "a@1"}):
            named = tool_lock.packages_of(config(tools={"a": {"command": "x", **packages}}).tools["a"])
            assert named is not None
            with pytest.raises(AgentrlError):
                tool_lock.kept_pins("a", named[1], folder)
    return read
