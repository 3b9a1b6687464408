"""A real Chromium without a window for a test, controlled over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import aeventually

PORT_FILE = "DevToolsActivePort"
_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b.")


class Page:
    """One page: its requests, the bytes that its terminal received, and its keys."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.asked: list[str] = []
        self.blocked: list[str] = []
        self.drawn = b""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def listen(self) -> None:
        async for message in self._socket:
            shown = json.loads(message.data)
            what, about = shown.get("method"), shown.get("params", {})
            if (answer := self._answers.pop(shown.get("id"), None)) is not None:
                answer.set_result(shown.get("result"))
            elif what == "Network.requestWillBeSent":
                self.asked.append(about["request"]["url"])
            elif what == "Network.webSocketFrameReceived" and about["response"]["opcode"] == 2:
                self.drawn += base64.b64decode(about["response"]["payloadData"])
            elif what == "Log.entryAdded" and about["entry"]["level"] == "error":
                self.blocked.append(about["entry"]["text"])

    async def call(self, method: str, **arguments: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        async with asyncio.timeout(60):
            return await answer

    async def open(self, url: str) -> None:
        self.drawn = b""
        await self.call("Page.navigate", url=url)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])

    async def says(self) -> str:
        """The text of the page outside its terminal."""
        found = await self.call("Runtime.evaluate", expression="document.body.innerText")
        return str(found["result"].get("value", ""))

    async def shows(self, *texts: str) -> None:
        """Wait until the terminal of the page has received all these texts since the page was opened, or since
        `forget`."""

        def there() -> bool:
            seen = _CONTROL.sub("", self.drawn.decode(errors="replace"))
            missing = [text for text in texts if text not in seen]
            assert not missing, f"{missing} not in:\n{seen[-4000:]}"
            return True

        await aeventually(there, within_s=60)

    def forget(self) -> None:
        self.drawn = b""


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "chromium is not installed; `.ci/packages` installs it"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
    window = ("--window-size=1000,700", f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank")
    with (profile.parent / "chromium.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, *options, *window, stderr=log, stdout=log)
    try:
        port_file = profile / PORT_FILE
        written = await aeventually(lambda: port_file.is_file() and port_file.read_text(), within_s=60)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{str(written).split()[0]}/json") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen(), name="browser")
                for domain in ("Network", "Page", "Log", "Runtime"):
                    await page.call(f"{domain}.enable")
                yield page
                listening.cancel()
    finally:
        process.terminate()
        await process.wait()


def processes_of(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False, timeout=10)
    return [int(pid) for pid in found.stdout.split()]
