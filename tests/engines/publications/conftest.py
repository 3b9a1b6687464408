"""A real MongoDB and the directory of a run with two versions."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pymongo import AsyncMongoClient

from agentrl.engines.publication_store import StoredPublications
from agentrl.store.database import connect
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database


@pytest.fixture
async def database(mongo_url: str) -> AsyncIterator[Database]:
    async with AsyncMongoClient(mongo_url, tz_aware=True) as client:
        database = client["test"]
        for name in ("Publication", "Service", "Task"):
            await database[name].delete_many({})
        yield database


@pytest.fixture
async def store(mongo_url: str, database: Database) -> AsyncIterator[StoredPublications]:
    seam = connect(mongo_url, "test")
    yield StoredPublications(seam)
    await seam.close()


@pytest.fixture
def run_dir(tmp_path: Path, first: Weights, second: Weights) -> Path:
    for weights in (first, second):
        shutil.copytree(weights.path, tmp_path / "weights" / weights.path.name)
    return tmp_path
