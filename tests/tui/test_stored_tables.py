"""Tasks, checkpoints, keys and run files: the console has the commands of the command line."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from agentrl.config import paths
from agentrl.protocol import control_commands, data_changes
from agentrl.protocol.data_commands import Page, Story
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import Permission
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.cli_runner import agentrl
from tui.console_interface import Settings
from tui.model.notices import Notices

AT = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
TASKS: tuple[dict[str, Any], ...] = tuple(
    {"id": f"shop/train/0/{n:06d}", "status": "dead", "reason": "stale", "round": n, "admitted_at": AT}
    for n in range(3)
)
CHECKPOINTS: tuple[dict[str, Any], ...] = (
    {"id": "step-9", "status": "complete", "step": 9, "version": 4, "at": AT, "path": "checkpoints/9", "pinned": True},
    {"id": "step-6", "status": "complete", "step": 6, "version": 3, "at": AT, "path": "checkpoints/6"},
)


@pytest.fixture
def run(coordinator: Scripted) -> Scripted:
    populate(coordinator)
    coordinator.answers["list_records"] = coordinator.answers["list_steps"] = lambda _: Page()
    coordinator.answers["list_tasks"] = lambda _: Page(TASKS)
    coordinator.answers["list_checkpoints"] = lambda _: Page(CHECKPOINTS)
    coordinator.answers["show_task"] = lambda args: Story({"id": args.id, "query": "what is it"}, ({"id": "r1"},))
    coordinator.answers["show_checkpoint"] = lambda args: Story({"id": args.id, "files": {"a.bin": {"bytes": 9}}})
    ann = control_commands.KeyRow("ann", "p" * 40, Permission.VIEWER, 1e9)
    coordinator.answers["list_keys"] = lambda _: [ann]
    return coordinator


async def select(screen: Screen, key: str) -> None:
    await aeventually(lambda: screen.app.view.query_one("Table").model.select(key))  # type: ignore[attr-defined]


async def test_marked_tasks_are_requeued_and_a_file_is_added(run: Scripted) -> None:
    async with opened(run.state_dir, (80, 24)) as screen:
        await screen.press("7", "T")
        await screen.shows("shop/train/0/000002", "stale")
        whole(screen, 80, 24)
        await select(screen, "shop/train/0/000000")
        await screen.press("space", "space", "r")
        await screen.shows("Sample 2 tasks again")
        await screen.type("why")
        await screen.press("enter")
        wanted = data_changes.RequeueTasks(("shop/train/0/000000", "shop/train/0/000001"), "why")
        await aeventually(lambda: run.sent("requeue_tasks") == [wanted])
        await screen.press("a")
        await screen.shows("Queue the rows of a file")
        await screen.type("shop")
        await screen.press("tab")
        await screen.type("x.jsonl")
        await screen.press("enter")
        await aeventually(lambda: run.sent("add_tasks") == [data_changes.AddTasks("shop", "x.jsonl")])
        await select(screen, "shop/train/0/000001")
        await screen.press("enter")
        await screen.shows("what is it", "its attempts (1 of 1)")


async def test_checkpoint_is_pinned_and_unpinned(run: Scripted) -> None:
    run.effects["pin_checkpoint"] = Effect(changes=("step-6 is kept",))
    async with opened(run.state_dir, (80, 24)) as screen:
        await screen.press("8", "C")
        await screen.shows("step-9", "◆ pinned")
        await select(screen, "step-6")
        await screen.press("p")
        await aeventually(lambda: run.sent("pin_checkpoint") == [data_changes.PinCheckpoint("step-6")])
        await screen.press("u")
        await aeventually(lambda: run.sent("unpin_checkpoint") == [data_changes.UnpinCheckpoint("step-6")])
        await screen.press("enter")
        await screen.shows("a.bin  9 B")
        await screen.press("escape", "colon")
        await screen.type("checkpoints unpin step-9")
        await screen.press("enter")
        await aeventually(lambda: run.sent("unpin_checkpoint")[1:] == [data_changes.UnpinCheckpoint("step-9")])


async def test_run_goes_back_to_the_selected_checkpoint(run: Scripted) -> None:
    effect = Effect(starts=("trainer-0",), drains=("trainer-0",), changes=("training goes on from step-6",))
    run.effects["rollback"] = effect
    async with opened(run.state_dir, (80, 24)) as screen:
        await screen.press("8", "C")
        await screen.shows("step-9")
        await select(screen, "step-6")
        await screen.press("F")
        await screen.shows("Go back to step-6")
        await screen.type("it collapsed")
        await screen.press("enter")
        await screen.shows("training goes on from step-6")
        await screen.press("enter")
        await aeventually(lambda: run.sent("rollback") == [data_changes.RollBack("step-6", "it collapsed")])


@pytest.mark.parametrize(
    ("view", "opens", "verbs"),
    [
        ("tasks", ("7", "T"), ("r", "a")),
        ("checkpoints", ("8", "C"), ("p", "x")),
        ("keys", ("9", "K"), ("n", "x")),
    ],
)
async def test_stale_list_allows_no_command(
    run: Scripted, view: str, opens: tuple[str, ...], verbs: tuple[str, ...]
) -> None:
    """Keep the feed alive, so that only the list is stale."""
    async with opened(run.state_dir, (120, 24)) as screen:
        await screen.press(*opens)
        await aeventually(lambda: screen.app.view.fresh)
        run.hold(f"list_{view}")
        await aeventually(lambda: run.waiting(f"list_{view}"), what="another question")
        screen.app.view._answered_at = -1e9  # type: ignore[attr-defined]
        await screen.shows(", answered ")
        for verb in verbs:
            screen.app.notices = Notices()
            await screen.press(verb)
            await screen.shows("the screen is more than 5 s old")
            assert len(screen.app.screen_stack) == 1, "no form opens"
        await aeventually(lambda: screen.app.fresh, what="a sign of life")
        assert not [worker for worker in screen.app.workers if worker.group == "acts"]
        run.let_go(f"list_{view}")
        await aeventually(lambda: screen.app.view.fresh)
        screen.app.notices = Notices()
        await screen.press(verbs[0])
        await aeventually(lambda: len(screen.app.screen_stack) == 2 or run.sent("pin_checkpoint"))


@pytest.mark.parametrize(("name", "shown"), [("tasks", "shop/train/0"), ("checkpoints", "step-9"), ("keys", "viewer")])
async def test_palette_opens_lists_without_a_digit_from_any_view(run: Scripted, name: str, shown: str) -> None:
    async with opened(run.state_dir, (100, 24)) as screen:
        await screen.press("escape")
        await screen.shows("This is the first page")
        await screen.press("2")
        await aeventually(lambda: "This is the first page" not in screen.text)
        await screen.press("colon")
        await screen.type(name[:4])
        await screen.shows(f"▸ {name} ")
        await screen.press("enter")
        await screen.shows(shown)
        assert screen.app.view.name_in_registry == name


async def test_command_is_refused_if_its_list_became_stale_during_the_question(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 24)) as screen:
        await screen.press("7", "T")
        await select(screen, "shop/train/0/000001")
        await screen.press("r")
        await screen.shows("Sample shop/train/0/000001 again")
        run.hold("list_tasks")
        await aeventually(lambda: run.waiting("list_tasks"), what="another question")
        screen.app.view._answered_at = -1e9  # type: ignore[attr-defined]
        await screen.press("enter")
        await screen.shows("the screen is more than 5 s old")
    assert not run.sent("requeue_tasks")


async def test_key_is_revoked_and_a_new_secret_is_never_shown(
    run: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(run.state_dir.parent))
    monkeypatch.chdir(tmp_path)
    run.listen |= {"listen": "tcp://127.0.0.1:7400", "public": "p" * 40}
    run._write_file()
    async with opened(run.state_dir, (100, 30)) as screen:
        screen.app.mirror.name = "demo"
        await screen.press("9", "K")
        await screen.shows("ann", "viewer")
        await screen.press("x")
        await aeventually(lambda: run.sent("revoke_key") == [control_commands.RevokeKey("ann")])
        await screen.press("n")
        await screen.type("bob")
        await screen.press("enter")
        await aeventually((tmp_path / "bob.key").exists, within_s=60)
        await aeventually(lambda: [args.name for args in run.sent("add_key")] == ["bob"])  # type: ignore[attr-defined]
        await screen.shows("keys:")
        assert not [
            line for line in (tmp_path / "bob.key").read_text().split() if len(line) > 30 and line in screen.text
        ]


async def test_plan_of_a_run_file_is_shown_before_it_is_applied(
    run: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(run.state_dir.parent))
    file = tmp_path / "r.yaml"
    file.write_text("name: demo\ndir: /runs/demo\nsidecars:\n  web: {command: [sleep, '9']}\n")
    monkeypatch.chdir(tmp_path)
    run.effects["apply"] = Effect(drains=("web-1",))
    async with opened(run.state_dir, (100, 30)) as screen:
        await screen.command("up with")
        await screen.shows("Make this run equal to a file")
        await screen.type("r.yaml")
        await screen.shows("disruptive: 1 unit finishes its work and ends: web-1")
        await screen.press("enter")
        await screen.shows("up r.yaml?")
        assert not run.sent("apply")
        await screen.press("escape")
        await screen.shows("up r.yaml: nothing was done.")


async def test_browser_page_reads_run_files_only_beside_the_runs_own(
    run: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person at a browser page has no account on the serving host."""
    monkeypatch.setenv("AGENTRL_HOME", str(run.state_dir.parent))
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    for folder in (own, elsewhere):
        folder.mkdir()
        (folder / "r.yaml").write_text("name: demo\n")
    (own / "link.yaml").symlink_to(elsewhere / "r.yaml")
    (run.state_dir / paths.LAST_UP).write_text(json.dumps({"file": str(own / "first.yaml"), "sets": []}))
    async with opened(run.state_dir, (120, 30), Settings(in_browser=True)) as screen:
        screen.app.mirror.name = run.state_dir.name
        await screen.command("up with")
        await screen.shows("Make this run equal to a file")
        for name in (elsewhere / "r.yaml", own / "link.yaml", "/etc/shadow", own / ".." / "elsewhere" / "r.yaml"):
            screen.app.screen.query_one(Input).value = str(name)
            await screen.shows("A browser page reads run files only from")
        await screen.press("enter")
        assert len(screen.app.screen_stack) == 2, "nothing was read"
        screen.app.screen.query_one(Input).value = str(own / "r.yaml")
        await aeventually(lambda: "A browser page reads run files" not in screen.text)


async def test_browser_page_cannot_add_tasks_of_a_file(run: Scripted) -> None:
    async with opened(run.state_dir, (120, 30), Settings(in_browser=True)) as screen:
        await screen.command("tasks add /etc/shadow --environment shop")
        await screen.shows("a browser page must not read files of the steward's host")


async def test_process_of_the_command_line_has_its_own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal keys such as Ctrl-C reach the foreground processes of a whole session."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport os\nprint(os.getsid(0) == os.getpid())\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert (await agentrl("status")).last == "True"
