"""Makes the recording that comes with the package and the pictures of the docs: `make recording`, `make pictures`.

Invariants:
- The recording is a real training demo, from one or two minutes before its sampler is killed to its end, so it has an
  incident, a tightened bound and failed tool calls.
- The pictures are screens of it.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.errors import ExitCode
from agentrl.recording.file_format import MAGIC
from agentrl.recording.reader import Recording
from assets.train_demo import NAME
from tui import recording_lookup
from tui.app import Console
from tui.model.mirror import Mirror
from tui.playback_connection import PlaybackConnection

FILE = Path(__file__).parent / recording_lookup.SHIPPED
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
BEFORE_S = 75.0
MOST_BYTES = 300_000
SIZE = (100, 30)
SCENES = {"overview": (), "fleet": ("2", "down", "down"), "events": ("3",)}


def record() -> int:
    """Runs the demo and keeps the interesting part of its recording."""
    with tempfile.TemporaryDirectory(prefix="agentrl-demo-") as home:
        done = subprocess.run([sys.executable, "-m", "assets.train_demo", "--keep", home], check=False)
        if done.returncode != 0:
            return done.returncode
        size = cut(Path(home) / "state" / NAME / recording_lookup.DIRECTORY, FILE)
    print(f"{FILE} has {size} bytes.")
    return ExitCode.OK if size <= MOST_BYTES else ExitCode.FAILED


def cut(directory: Path, into: Path) -> int:
    """Copies frames from shortly before the first incident on. Returns the size."""
    recording = Recording.open(directory)
    happened = min(mark.at for mark in recording.marks if mark.key.startswith("incident/"))
    kept = recording.frames[recording.frame_at(happened - BEFORE_S) :]
    body = b"".join(frame.path.read_bytes()[frame.begin : frame.end] for frame in kept)
    into.write_bytes(MAGIC + body)
    return into.stat().st_size


async def paint() -> None:
    """Paints the scenes some seconds after the kill of the sampler."""
    recording = Recording.open(FILE)
    at = min(mark.at for mark in recording.marks if mark.key.startswith("incident/")) + 20.0

    def link(mirror: Mirror) -> PlaybackConnection:
        connection = PlaybackConnection(mirror, recording, name="demo", at=at)
        connection.playback.playing = False
        return connection

    for name, keys in SCENES.items():
        app = Console(link)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.0)
            await pilot.press(*keys)
            await pilot.pause(1.0)
            app.save_screenshot(f"{name}.svg", str(PICTURES))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m assets.make_recording", description=__doc__)
    parser.add_argument("what", choices=("record", "pictures"))
    if parser.parse_args().what == "record":
        return record()
    asyncio.run(paint())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
