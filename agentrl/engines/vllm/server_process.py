"""The process of a vLLM server, from its start to the end of all its children.

Invariants: only the user of the run can open its socket; a server has its own process group, of which no process is
left when `close` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.config.engines import Engines
from agentrl.engines.interface import EngineError, EngineGoneError
from agentrl.engines.vllm.vllm_client import MODEL, VllmClient

LOOK_EVERY_S = 0.25
TERM_WITHIN_S = 10.0
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


class VllmServer:
    def __init__(self, process: asyncio.subprocess.Process, place: Path) -> None:
        self._process = process
        self._place = place
        self.client = VllmClient(str(place / "socket"))

    @classmethod
    async def start(
        cls, python: str, engines: Engines, *, context: int, path: str, environment: Mapping[str, str]
    ) -> VllmServer:
        """Starts it without waiting. It shares the output of this process."""
        # A directory of this user alone; its name is short, as paths of sockets must be.
        place = Path(tempfile.mkdtemp(prefix="vllm-"))
        given = arguments(engines, context=context, path=path, socket=str(place / "socket"))
        process = await asyncio.create_subprocess_exec(
            *(python, "-m", MODULE, *given),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**environment, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
        return cls(process, place)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        if self._process.returncode is not None:
            raise EngineGoneError(f"vLLM's server ended with {self._process.returncode}; see its output.")

    async def until_up(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not await self.client.healthy():
                    self.check()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise EngineError(f"vLLM's server was not up within {within_s:g} s; see its output.") from None

    async def close(self) -> None:
        await self.client.close()
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_WITHIN_S):
                    await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)
