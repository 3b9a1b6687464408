"""An embedded engine in a process of its own, as its unit runs it: `... engine_process NAME RUN_DIR`.

The URL of the database and the token come through the environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import torch

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.http_server import build_app
from agentrl.engines.publication_follower import PublicationFollower
from agentrl.engines.publication_store import StoredPublications
from agentrl.http.token_server import listening
from agentrl.store.database import connect
from agentrl.store.documents import Service


async def main(name: str, run_dir: Path) -> None:
    torch.set_num_threads(1)
    database = connect(os.environ["MONGO_URL"], os.environ["MONGO_DATABASE"])
    engine = EmbeddedEngine(slots=32, context=256)
    engine.start()
    async with listening(build_app(engine, os.environ["TOKEN"])) as url:
        me = Service(kind="engine", id=name, unit=name.partition(".")[0], url=url)
        await PublicationFollower(engine, StoredPublications(database), me, run_dir=run_dir, second=engine).follow()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
