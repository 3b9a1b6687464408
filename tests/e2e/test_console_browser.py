"""The console in a browser: a real run, a real server, a real Chromium."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from agentrl.errors import ExitCode
from tests.e2e.browser import browser, processes_of
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S, aeventually, eventually
from tui.serving import access
from tui.serving.web_server import MOST, TOO_MANY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for made in running(tmp_path_factory.mktemp("browser"), f"t-{uuid.uuid4().hex[:8]}"):
        made.sidecar("web", ["sh", "-c", "echo first words; exec sleep 1000"], count=2)
        made.up()
        yield made


class Served:
    def __init__(self, run: Run, *options: str) -> None:
        words = ["tui", "--serve", "--run", run.name, *options]
        environ = {name: value for name, value in run.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [PYTHON, "-m", "agentrl", *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.process.communicate(timeout=10)
        self.base = self.url.partition("/?")[0]

    def consoles(self) -> list[int]:
        return processes_of(self.process.pid)

    def end(self) -> int:
        """End the server, also if it has ended already."""
        with self.process:
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(60)


@pytest.fixture
def served(run: Run, request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(run, *getattr(request, "param", ()))
    try:
        yield made
    finally:
        made.end()


async def test_browser_shows_the_run_read_only(served: Served, tmp_path: Path) -> None:
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{served.base}/")
        await aeventually(page.says, within_s=60)
        assert (await page.says()).strip() == access.NEEDS_ADDRESS
        assert not served.consoles()

        await page.open(served.url)
        await page.shows("web 2/2", "read-only")
        before = await page.picture()
        page.forget()
        await page.press("2")
        await page.shows("UNIT", "web-0", "web-1", "● ready")

        async def drawn_again() -> bool:
            return await page.picture() != before

        await aeventually(drawn_again)

        page.forget()
        await page.press("r")
        await page.shows("restart is not possible: this console is read-only.")
        page.forget()
        await page.press("E")
        await page.shows("A browser page writes no files.")
        outside = [url for url in page.asked if not url.startswith((served.base, "data:"))]
        assert not outside, "a page loads nothing from elsewhere"
        assert not [message for message in page.blocked if "Content Security Policy" in message]

        (console,) = served.consoles()
        page.forget()
        await page.press("q")
        await aeventually(lambda: console not in served.consoles(), within_s=60)

        async def answered() -> bool:
            return "This console has ended." in await page.says()

        await aeventually(answered)

        await page.open(f"{served.base}/")
        await page.shows("web 2/2")
        assert len(served.consoles()) == 1, "the cookie gives access"
        await page.open("about:blank")
        await aeventually(lambda: not served.consoles(), within_s=60, what="the console ends with its page")


@pytest.mark.parametrize("served", [("--writable",)], indirect=True)
async def test_writable_page_offers_commands(run: Run, served: Served, tmp_path: Path) -> None:
    async with browser(tmp_path / "profile") as page:
        await page.open(served.url)
        await page.shows("web 2/2")
        for key in ("2", "r"):
            await page.press(key)
        await page.shows("restart web-0.")
        await page.press("\r")
        run.wait_incarnation("web-0", 1)


async def test_number_of_consoles_is_limited_and_they_end_with_the_server(served: Served) -> None:
    async with aiohttp.ClientSession(
        headers={"Origin": served.base}, cookie_jar=aiohttp.CookieJar(unsafe=True)
    ) as session:
        async with session.get(served.url) as page:
            assert page.status == 200
            assert "textual.js" in await page.text()
        sockets = [await session.ws_connect(f"{served.base}/ws?width=80&height=24") for _ in range(MOST)]
        await aeventually(lambda: len(served.consoles()) == MOST, within_s=60)
        for path in ("/", "/ws"):
            async with session.get(f"{served.base}{path}") as refused:
                assert (refused.status, (await refused.text()).strip()) == (503, TOO_MANY)
        consoles = served.consoles()
        await sockets[0].close()
        await aeventually(lambda: len(served.consoles()) == MOST - 1, within_s=60)
        served.process.kill()
        await asyncio.to_thread(served.process.wait, 30)
        await aeventually(lambda: not any(_lives(pid) for pid in consoles), within_s=60)
        for socket in sockets:
            await socket.close()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_requests_without_token_get_one_sentence(served: Served) -> None:
    def refused(path: str, why: str, **headers: str) -> None:
        answer = httpx.get(f"{served.base}{path}", headers=headers, timeout=PATIENCE_S)
        assert (answer.status_code, answer.text.strip()) == (403, why)

    token = served.url.partition("/?")[2]
    refused("/", access.NEEDS_ADDRESS)
    refused("/static/js/textual.js", access.NEEDS_ADDRESS)
    refused("/no/such/thing", access.NEEDS_ADDRESS)
    refused("/?token=wrong", access.WRONG_TOKEN)
    refused(f"/?{token}", access.WRONG_NAME, host="evil.example")
    refused(f"/?{token}", access.WRONG_ORIGIN, origin="http://evil.example")
    answer = httpx.get(served.url, timeout=PATIENCE_S)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    assert served.end() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--serve", "--listen", "0.0.0.0:0"), "on this host only"),
        (("--serve", "--listen", "nonsense"), "is not an address"),
        (("--serve", "--writable", "--read-only"), "contradict"),
        (("--writable",), "--writable goes with --serve"),
        (("--listen", "127.0.0.1:1"), "--listen goes with --serve"),
        (("--serve", "--playback", "no-such-run"), "no-such-run"),
    ],
)
def test_wrong_options_are_reported_before_serving(run: Run, options: tuple[str, ...], why: str) -> None:
    done = run.raw("tui", *options)
    assert done.returncode in (ExitCode.USAGE, ExitCode.UNKNOWN)
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_address_is_printed_as_json(run: Run) -> None:
    served = run.start("tui", "--serve", "--json")
    assert served.stdout is not None
    assert served.stdout.readline().startswith('{"url": "http://127.0.0.1:')
    eventually(lambda: served.poll() is None)
    served.send_signal(signal.SIGINT)
    served.communicate(timeout=60)
    assert served.returncode == 0
