"""Files in a workspace: no path leads out of it, and sizes are bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.toolservers import ToolError, workspace_files
from agentrl.toolservers.workspace_files import FileTools, Workspace, copied

PARTS = st.sampled_from(["..", ".", "", "a", "b.txt", "link", "out", "~", "/", "\0", "\ud800", "x" * 300, "..."])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace beside a secret, with links that lead to it."""
    inside = tmp_path / "workspace"
    (inside / "a").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("the secret")
    (inside / "link").symlink_to(tmp_path / "secret.txt")
    (inside / "out").symlink_to(tmp_path, target_is_directory=True)
    (inside / "b.txt").write_text("one\ntwo\nthree\n")
    os.mkfifo(inside / "pipe")
    return inside


@pytest.fixture
def tools(root: Path) -> FileTools:
    return FileTools(Workspace(str(root)))


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "out/secret.txt", "link", "a/../../secret.txt", "pipe"]
)
def test_no_path_leads_out_of_the_workspace(tools: FileTools, root: Path, path: str) -> None:
    for act in (lambda: tools.read_file(path), lambda: tools.write_file(path, "changed")):
        with pytest.raises(ToolError):
            act()
    assert (root.parent / "secret.txt").read_text() == "the secret"
    with pytest.raises(ToolError):
        tools.list_files("out")
    assert "secret" not in tools.search_files("secret") + tools.list_files()


@settings(max_examples=150)
@given(path=st.lists(PARTS, max_size=5).map("/".join))
def test_random_paths_stay_inside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    outside = tmp_path_factory.mktemp("outside")
    inside = outside / "workspace"
    inside.mkdir()
    (inside / "out").symlink_to(outside, target_is_directory=True)
    (inside / "link").symlink_to(outside / "made")
    tools = FileTools(Workspace(str(inside)))
    for act in (lambda: tools.write_file(path, "x"), lambda: tools.list_files(path), lambda: tools.read_file(path)):
        try:
            act()
        except ToolError:
            continue
    assert [entry.name for entry in outside.iterdir()] == ["workspace"]


def test_files_are_written_replaced_and_found(tools: FileTools, root: Path) -> None:
    tools.write_file("new/deep/c.txt", "alpha\nbeta\nalpha\n")
    with pytest.raises(ToolError, match="2 times"):
        tools.replace_in_file("new/deep/c.txt", "alpha", "gamma")
    assert tools.replace_in_file("new/deep/c.txt", "alpha", "gamma", every=True) == "new/deep/c.txt: 2 replaced"
    assert tools.search_files("gamma", "new") == "new/deep/c.txt:1: gamma\nnew/deep/c.txt:3: gamma"
    assert tools.list_files("new", "*.txt") == "new/deep/c.txt (17 bytes)"
    assert tools.read_file("b.txt", 3) == "three\n"
    assert not [name for name in os.listdir(root / "new/deep") if name.endswith(".new")]


def test_sizes_are_bounded(tools: FileTools, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="at most"):
        tools.write_file("large", "x" * (workspace_files.MOST_FILE_BYTES + 1))
    (root / "huge").write_bytes(b"x" * (workspace_files.MOST_FILE_BYTES + 1))
    with pytest.raises(ToolError, match="at most"):
        tools.read_file("huge")
    tools.write_file("long", "".join(f"line {number}\n" for number in range(20_000)))
    first = tools.read_file("long")
    assert len(first) < workspace_files.MOST_READ_CHARS + 100
    going_on = int(first.rpartition("start_line ")[2].rstrip("]"))
    assert tools.read_file("long", going_on).startswith(f"line {going_on - 1}\n")
    monkeypatch.setattr(workspace_files, "MOST_WORKSPACE_BYTES", 1 << 20)
    with pytest.raises(ToolError, match="full"):
        tools.write_file("one-more", "x")


def test_a_session_works_on_a_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Path(copied(str(root)))
    assert sorted(os.listdir(mine)) == ["a", "b.txt"], "links and pipes are left out"
    FileTools(Workspace(str(mine))).write_file("b.txt", "changed")
    assert (root / "b.txt").read_text() == "one\ntwo\nthree\n"
    monkeypatch.setattr(workspace_files, "MOST_FILES", 0)
    with pytest.raises(ToolError, match="more than 0 files"):
        copied(str(root))
