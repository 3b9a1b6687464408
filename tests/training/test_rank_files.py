"""What a rank on another host loads: the files that the rank that leads has read, and no others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.files.frames import FilesError
from agentrl.files.named_files import MARKER
from agentrl.files.pieces import Content, content_of
from agentrl.training.rank_files import Bring, Place, RankFiles

CHECKPOINT = "checkpoints/step-000001.a"


class TwoHosts:
    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there", folder / "here"
        self.asked: list[str] = []
        for one in (self.there, self.here):
            one.mkdir()

    def write(self, directory: Path, text: str = "weights") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.safetensors").write_text(text)
        return directory

    def bring(self, directory: str, files: Mapping[str, Content]) -> None:
        """Copy files like the file process: a file whose name exists here already is not requested."""
        self.asked.append(directory)
        for name in files:
            (self.here / directory).mkdir(parents=True, exist_ok=True)
            if not (self.here / directory / name).exists():
                shutil.copy(self.there / directory / name, self.here / directory / name)

    def leader(self, model: str = "") -> RankFiles:
        return RankFiles(self.there, model, host="a")

    def follower(self, model: str = "", bring: Bring | None = None) -> RankFiles:
        return RankFiles(self.here, model, host="b", bring=bring or self.bring)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoHosts:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    return TwoHosts(tmp_path)


def test_a_rank_gets_the_files_of_rank_0_and_replaces_files_of_an_earlier_start(hosts: TwoHosts) -> None:
    place = hosts.leader().place(hosts.write(hosts.there / "reference"))
    hosts.write(hosts.here / "reference", "another")
    found = hosts.follower().find(place)
    assert found == hosts.here / "reference"
    assert (found / "model.safetensors").read_text() == "weights"


def test_a_rank_loads_nothing_that_differs_from_the_document_of_the_checkpoint(hosts: TwoHosts) -> None:
    directory = hosts.write(hosts.there / CHECKPOINT)
    known = {"model.safetensors": content_of(directory / "model.safetensors")}
    hosts.write(directory, "changed since")
    place = hosts.leader().place(directory, known)
    with pytest.raises(FilesError, match="not the file that rank 0 has"):
        hosts.follower().find(place)


def test_ranks_in_one_directory_and_ranks_of_one_host_get_nothing(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (hosts.there, hosts.here):
        hosts.write(one / CHECKPOINT, "the directory of the coordinator, mounted twice")
        (one / MARKER).touch()
    refuse: Callable[..., None] = lambda *_: pytest.fail("nothing is to be got")  # noqa: E731
    assert hosts.follower(bring=refuse).find(hosts.leader().place(hosts.there / CHECKPOINT)) == hosts.here / CHECKPOINT
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    place = RankFiles(hosts.here).place(hosts.here / CHECKPOINT)
    assert place.files == {}, "nothing is read twice"
    assert hosts.follower(bring=refuse).find(place) == hosts.here / CHECKPOINT


def test_the_named_model_is_where_each_host_has_it_and_a_missing_directory_is_one_sentence(hosts: TwoHosts) -> None:
    named = hosts.leader(str(hosts.there / "qwen")).place(hosts.there / "qwen")
    assert hosts.follower(str(hosts.here / "copied" / "qwen")).find(named) == hosts.here / "copied" / "qwen"
    with pytest.raises(ConfigError, match="is not on this host"):
        hosts.follower().find(Place("/elsewhere"))
