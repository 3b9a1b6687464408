"""The process of a vLLM server. Only the user of the run can open its socket."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.config.engines import Engines
from agentrl.engines.server_process import ServerProcess, started
from agentrl.engines.vllm.vllm_client import MODEL, VllmClient

MODULE = "vllm.entrypoints.openai.api_server"


def arguments(engines: Engines, *, context: int, path: str, socket: str) -> list[str]:
    """The arguments of a server. `engines.args` only adds arguments; the configuration refuses those that the run
    decides."""
    return [
        *("--model", path, "--served-model-name", MODEL, "--uds", socket),
        *("--max-model-len", str(context), "--max-num-seqs", str(engines.slots)),
        # Log-probs are those of the sampled distribution, at its temperature; the model's own sampling settings are
        # ignored.
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "1", "--generation-config", "vllm"),
        *engines.args,
    ]


class VllmServer(ServerProcess):
    NAME = "vLLM"

    def __init__(self, process: asyncio.subprocess.Process, place: Path) -> None:
        super().__init__(process)
        self._place = place
        self._client = VllmClient(str(place / "socket"))

    @classmethod
    async def start(
        cls, python: str, engines: Engines, *, context: int, path: str, environment: Mapping[str, str]
    ) -> VllmServer:
        """Starts it without waiting."""
        # A directory of this user alone; its name is short, as paths of sockets must be.
        place = Path(tempfile.mkdtemp(prefix="vllm-"))
        given = arguments(engines, context=context, path=path, socket=str(place / "socket"))
        process = await started(
            [python, "-m", MODULE, *given], {**environment, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        )
        return cls(process, place)

    @property
    def client(self) -> VllmClient:
        return self._client

    async def answers(self) -> bool:
        return await self.client.healthy()

    async def close(self) -> None:
        await super().close()
        shutil.rmtree(self._place, ignore_errors=True)
