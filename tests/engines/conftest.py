"""A tiny model, its publications, and transformers' forward pass of the same files as the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Canary
from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.http_server import build_app
from agentrl.engines.manifest import Manifest
from agentrl.http.token_server import listening
from tests.engines import unverified

TEXTS = [f"What do {n} pears cost? <tool_call>lookup(pear)</tool_call> <answer>{3 * n}</answer>" for n in range(40)]
TOKEN = "a-token-for-tests-only"
FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


@dataclass
class Weights:
    """One version: its files, and the log-probs that transformers computes from them."""

    path: Path
    version: int
    reference: torch.nn.Module

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits of the token after `ids`."""
        with torch.inference_mode():
            found: torch.Tensor = self.reference(torch.tensor([list(ids)])).logits[0, -1]
        return found.float().clone()

    def log_probs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The log-probs of all ids except the first."""
        with torch.inference_mode():
            logits = self.reference(torch.tensor([list(ids)])).logits[0].float() / temperature
        spread = torch.log_softmax(logits, dim=-1)[:-1]
        found: list[float] = spread.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0].tolist()
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        found = list(ids)
        with torch.inference_mode():
            for _ in range(count):
                found.append(int(self.reference(torch.tensor([found])).logits[0, -1].argmax()))
        return found[len(ids) :]

    @property
    def vocabulary(self) -> int:
        size: int = self.reference.config.vocab_size
        return size

    def manifest(self) -> Manifest:
        ids = [[5 + place * 7 % 200 for place in range(length)] for length in (12, 30)]
        return manifests.describe(self.path, FILES, Canary(ids, [self.log_probs(one) for one in ids]))


def write_version(path: Path, version: int, **changes: object) -> Weights:
    """Weights as a trainer publishes them; larger than a fresh model's, so that distributions are not uniform."""
    build_tiny(path, TEXTS, seed=version, **{"initializer_range": 0.15, "max_position_embeddings": 512, **changes})
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    written = Weights(path, version, reference)
    manifests.write(path, written.manifest())
    return written


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return write_version(tmp_path_factory.mktemp("weights") / "v000001", 1)


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return write_version(tmp_path_factory.mktemp("weights") / "v000002", 2)


@pytest.fixture(scope="session")
def model(first: Weights) -> Model:
    return unverified.load(first.path, 1)


@pytest.fixture(scope="session")
def newer(second: Weights) -> Model:
    return unverified.load(second.path, 2)


@pytest.fixture
async def engine(first: Weights) -> AsyncIterator[EmbeddedEngine]:
    made = EmbeddedEngine(slots=16, context=1024)
    made.start()
    await made.update(str(first.path), 1)
    yield made
    await made.close()


@pytest.fixture
async def url(engine: EmbeddedEngine) -> AsyncIterator[str]:
    async with listening(build_app(engine, TOKEN)) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[HttpEngine]:
    made = HttpEngine(url, TOKEN)
    yield made
    await made.close()
