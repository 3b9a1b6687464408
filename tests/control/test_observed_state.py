"""Reports become the rows of units, groups and the run, and the facts for wait chains."""

from __future__ import annotations

from agentrl.config.paths import RunFile
from agentrl.control.commands.collect_stacks import file_name
from agentrl.control.state.observed_state import PROGRESS_EVERY, CoordinatorStatus, ObservedState
from agentrl.protocol.messages import RepeatedError, UnitReport, UnitStats, Wait
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision.liveness import Leases
from agentrl.supervision.unit_slots import Ghost, GroupState, RunState, Slot, State
from agentrl.supervision.wait_chains import explain


def observed_of(*groups: tuple[str, tuple[str, ...]], members: int = 3) -> ObservedState:
    """Groups with the groups that they start after; all units are ready."""
    state = State(run=RunState())
    for name, after in groups:
        spec = GroupSpec(name, Role.SIDECAR, ("true",), count=members, after=after)
        state.groups[name] = GroupState(spec=spec, file_count=members)
        for number in range(members):
            unit = f"{name}-{number}"
            state.slots[unit] = Slot(unit, name, number, state=UnitState.READY, incarnation=1)
    return ObservedState(state, Leases(10.0, 60.0))


def test_starting_trainer_is_described_with_its_status() -> None:
    observed = observed_of(("web", ()), ("trainer", ()), members=1)
    trainer = observed.state.slots["trainer-0"]
    observed.state.groups["trainer"].spec = GroupSpec("trainer", Role.TRAINER, ("true",))
    assert observed.trainer_to_come() == ""
    trainer.state = observed.state.slots["web-0"].state = UnitState.STARTING
    assert observed.trainer_to_come() == "trainer-0 is starting"
    observed.facts(trainer).report = UnitReport(status="warm-up: step 3 of 9")
    assert observed.trainer_to_come() == "trainer-0 is starting (warm-up: step 3 of 9)"


def test_reason_without_steps_is_given_only_if_a_command_is_needed() -> None:
    observed = observed_of(("trainer", ()), members=1)
    trainer, paused = observed.state.slots["trainer-0"], set[str]()
    observed.state.groups["trainer"].spec = GroupSpec("trainer", Role.TRAINER, ("true",))
    observed.state.run.up = True

    def reason() -> str:
        return observed.why_no_steps(paused.__contains__)

    assert reason() == ""
    paused.add("trainer-0")
    assert reason() == "no step is taken: trainer-0 is paused"
    trainer.state = UnitState.STARTING
    assert reason() == "", "a starting trainer needs no command"
    trainer.state = UnitState.FATAL
    assert reason() == "no step is taken: trainer-0 is fatal"
    trainer.state, trainer.done, trainer.bye_reason = (
        UnitState.STOPPED,
        True,
        "complete: all 6 steps are done; version 7",
    )
    assert reason() == "no step is taken any more: all 6 steps are done; version 7"
    observed.state.run.up = False
    assert reason() == ""


def test_run_with_a_problem_is_degraded_and_an_incomplete_one_starts() -> None:
    observed = observed_of(("engine", ()), ("toolbox", ()), members=2)
    observed.state.run.up = True

    def state() -> tuple[str, str]:
        row = observed.run_row(RunFile("r", "u", "/nowhere", 0.0), CoordinatorStatus(0.0, 1))
        return row.state, row.reason

    assert state() == ("running", "")
    for number in range(2):
        observed.facts(observed.state.slots[f"engine-{number}"]).report = UnitReport(
            incomplete="it serves no version yet"
        )
    assert state() == ("starting", "engine-0: it serves no version yet (and 1 more)")
    toolbox = observed.state.slots["toolbox-1"]
    observed.facts(toolbox).report = UnitReport(problems={"tool server search": "it exited with 1"})
    assert state() == ("degraded", "toolbox-1: tool server search: it exited with 1")
    row = observed.unit_row(toolbox, paused=False)
    assert row.problems == {"tool server search": "it exited with 1"}
    toolbox.state = UnitState.STOPPED
    assert observed.unit_row(toolbox, paused=False).problems == {}


def facts_of(observed: ObservedState, paused: str = "") -> set[str]:
    return set(observed.wait_facts(100.0, lambda unit: unit == paused))


def reports(observed: ObservedState, unit: str, *on: str) -> None:
    observed.facts(observed.state.slots[unit]).report = UnitReport(waits=tuple(Wait(name, age_s=5.0) for name in on))


def test_units_without_waits_have_no_facts() -> None:
    assert facts_of(observed_of(("web", ()), ("api", ()))) == set()


def test_facts_contain_the_waiting_unit_and_the_unit_it_waits_for() -> None:
    observed = observed_of(("web", ()), ("api", ()))
    reports(observed, "web-0", "api-1", "some resource")
    assert facts_of(observed) == {"web-0", "api-1"}


def test_facts_contain_all_members_of_a_group_that_is_waited_for() -> None:
    observed = observed_of(("web", ()), ("api", ()))
    reports(observed, "web-0", "api")
    observed.state.slots["api-2"].state = UnitState.FATAL
    facts = observed.wait_facts(100.0, lambda unit: False)
    assert set(facts) == {"web-0", "api-0", "api-1", "api-2"}
    (chain,) = explain(facts)
    assert chain.culprit == "api-2"


def test_pending_unit_waits_for_the_groups_in_after() -> None:
    observed = observed_of(("web", ("api",)), ("api", ()), ("other", ()))
    observed.state.slots["web-1"].state = UnitState.PENDING
    assert facts_of(observed) == {"web-1", "api-0", "api-1", "api-2"}


def test_facts_contain_every_unit_of_a_chain_and_its_pause() -> None:
    observed = observed_of(("web", ()), ("api", ()), ("base", ()))
    reports(observed, "web-0", "api-0")
    reports(observed, "api-0", "base-0")
    facts = observed.wait_facts(100.0, lambda unit: unit == "base-0")
    assert set(facts) == {"web-0", "api-0", "base-0"}
    (chain,) = explain(facts)
    assert (chain.culprit, chain.because) == ("base-0", "is paused")


def test_unwanted_unit_is_left_out() -> None:
    observed = observed_of(("web", ()), ("api", ()))
    reports(observed, "web-0", "api-0")
    observed.state.slots["api-0"].wanted = False
    assert facts_of(observed) == {"web-0"}


def test_progress_alone_is_shown_after_several_measurements() -> None:
    observed = observed_of(("web", ()))
    slot = observed.state.slots["web-0"]
    observed.leases.begin("web-0", 0.0)
    stats, shown = UnitStats("web-0", 1), []
    for at in range(3 * PROGRESS_EVERY):
        observed.leases.beat("web-0", float(at), progress=at)
        shown.append(observed.measured(slot, stats))
    assert [at for at, change in enumerate(shown) if change] == [0, PROGRESS_EVERY, 2 * PROGRESS_EVERY]
    assert observed.measured(slot, stats), "the last progress is shown as well"
    assert not any(observed.measured(slot, stats) for _ in range(2 * PROGRESS_EVERY)), (
        "without progress nothing is shown"
    )


def test_finished_job_is_completed_and_not_stopped() -> None:
    observed = observed_of(("job", ()), members=2)
    slot = observed.state.slots["job-0"]
    slot.state, slot.done = UnitState.STOPPED, True
    assert observed.unit_row(slot, paused=False).done
    assert observed.group_row(observed.state.groups["job"]).other == {"completed": 1}


def test_row_of_the_run_says_how_its_jobs_ended() -> None:
    observed = observed_of(("trainer", ()), ("web", ()), members=1)
    observed.state.run.up = True
    file, status = RunFile("demo", "u", "/nowhere", 0.0), CoordinatorStatus(0.0, 1)
    trainer, web = observed.state.slots["trainer-0"], observed.state.slots["web-0"]
    trainer.state, trainer.done, trainer.reason = UnitState.STOPPED, True, "done"
    assert observed.run_row(file, status).reason == ""
    trainer.reason = trainer.bye_reason = "done: and no step trained anything"
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("running", "trainer-0 is done: and no step trained anything")
    web.state, web.done = UnitState.STOPPED, True
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("finished", "trainer-0 is done: and no step trained anything")
    trainer.bye_reason = ""
    assert observed.run_row(file, status).reason == "every job is done"


def of_role(observed: ObservedState, *roles: Role) -> None:
    for role in roles:
        observed.state.groups[role.value].spec = GroupSpec(role.value, role, ("true",))


def test_run_is_finished_when_its_training_is() -> None:
    observed = observed_of(("sampler", ()), ("trainer", ()), members=1)
    of_role(observed, Role.SAMPLER, Role.TRAINER)
    observed.state.run.up = True
    file, status = RunFile("demo", "u", "/nowhere", 0.0), CoordinatorStatus(0.0, 1)
    trainer = observed.state.slots["trainer-0"]
    trainer.state, trainer.done, trainer.reason = UnitState.STOPPED, True, "done"
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("finished", "training is complete")
    sampler = observed.state.slots["sampler-0"]
    observed.facts(sampler).report = UnitReport(problems={"scorer strict": "ValueError"})
    assert observed.run_row(file, status).state == "finished", (
        "in a finished run no later episode could clear the problem"
    )


def test_run_that_makes_no_progress_is_not_shown_as_running() -> None:
    observed = observed_of(("sampler", ()), ("trainer", ()), members=1)
    of_role(observed, Role.SAMPLER, Role.TRAINER)
    observed.state.run.up = True
    file, status = RunFile("demo", "u", "/nowhere", 0.0), CoordinatorStatus(0.0, 1)
    status.standing = "trainer-0 has made no step for 4 min: admission admits nothing: disk nearly full"
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("standing", status.standing)
    status.paused = "trainer-0 by root"
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("paused", "no step is taken: trainer-0 by root")
    sampler = observed.state.slots["sampler-0"]
    sampler.held, sampler.state = "stopped by root", UnitState.STOPPED
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("degraded", "sampler is stopped: nothing is sampled")


def test_run_is_degraded_until_a_dead_unit_is_ready_again() -> None:
    observed = observed_of(("web", ()))
    observed.state.run.up = True
    slot = observed.state.slots["web-1"]
    file, status = RunFile("demo", "u", "/nowhere", 0.0), CoordinatorStatus(0.0, 1)
    slot.state = UnitState.STARTING
    row = observed.run_row(file, status)
    assert row.state == "starting", "a start that a command ordered is no problem"
    slot.deaths = [1.0]
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("degraded", "web-1 died and is starting again")
    slot.deaths, slot.ghosts = [], [Ghost("b", 1)]
    row = observed.run_row(file, status)
    assert (row.state, row.reason) == ("degraded", "web-1 was lost with host b and is starting again")
    slot.state = UnitState.READY
    assert observed.run_row(file, status).state == "running"


def test_reason_of_the_run_counts_units_that_start_or_have_not_ended() -> None:
    observed = observed_of(("web", ()), members=2)
    observed.state.run.up = True
    about = RunFile("my-run", "uuid", "/somewhere", 1.0), CoordinatorStatus(pid=1, started=1.0)
    for slot in observed.state.slots.values():
        slot.state = UnitState.STARTING
    assert observed.run_row(*about).reason == "2 units are not ready yet"
    observed.state.slots["web-0"].state = UnitState.READY
    assert observed.run_row(*about).reason == "1 unit is not ready yet"
    observed.state.run.up = False
    observed.state.slots["web-1"].tree_gone = False
    assert observed.run_row(*about).reason == "1 unit has not ended"


def test_only_a_unit_with_the_runtime_can_extend_its_start() -> None:
    observed = observed_of(("web", ()), members=2)
    for unit, speaks in (("web-0", True), ("web-1", False)):
        slot = observed.state.slots[unit]
        slot.state, slot.timer, slot.spec = UnitState.STARTING, 300.0, GroupSpec("web", Role.SIDECAR, (), speaks=speaks)
    shown = [observed.unit_row(slot, paused=False).next_what for slot in observed.state.slots.values()]
    assert shown == ["is given up unless it makes progress", "is given up unless ready"], (
        "only a unit with the runtime can announce a phase"
    )


def test_file_of_stacks_is_named_after_the_requested_units() -> None:
    wanted = ("web-0", "api-0.7", "web-0", "db", "judge-0", "judge-1")
    names = [file_name(wanted[:count]) for count in (0, 1, 3, 6)]
    assert names == ["all", "web-0", "web-0+api-0.7", "web-0+api-0.7+db+2-more"]


def test_repeated_error_of_a_unit_that_is_otherwise_quiet_is_shown_counted_and_ended() -> None:
    observed = observed_of(("web", ()), members=1)
    web = observed.state.slots["web-0"]

    def measured(*errors: RepeatedError) -> bool:
        return observed.measured(web, UnitStats("web-0", 1, repeated_errors=errors))

    def shown() -> tuple[RepeatedError, ...]:
        return observed.unit_row(web, paused=False).repeated_errors

    assert measured()
    first = RepeatedError("XError: no", 20, 1.0, 2.0)
    assert measured(first)
    counted = [measured(RepeatedError("XError: no", 20 + more, 1.0, 2.0 + more)) for more in range(PROGRESS_EVERY)]
    assert counted.count(True) == 1, "a growing count changes the row once in several measurements"
    assert shown()[0].count > first.count
    assert measured(), "the end of the error changes the row at once"
    assert shown() == ()
