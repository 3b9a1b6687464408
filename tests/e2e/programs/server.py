"""A web server without the unit runtime, whose port and pages are controlled by files of the run directory.

    python server.py PORT

RUN_DIR/open-UNIT lets it listen (until it is removed), RUN_DIR/warm-UNIT makes `/ready` answer 200, and while
RUN_DIR/sick-UNIT exists `/live` answers 503.
"""

from __future__ import annotations

import http.server
import os
import sys
import time
from pathlib import Path

RUN_DIR, UNIT = Path(os.environ["AGENTRL_RUN_DIR"]), os.environ["AGENTRL_UNIT"]


def has(order: str) -> bool:
    return (RUN_DIR / f"{order}-{UNIT}").exists()


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        well = has("warm") if self.path == "/ready" else not has("sick")
        self.send_response(200 if well else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    timeout = 0.05


while True:
    while not has("open"):
        time.sleep(0.02)
    with Server(("127.0.0.1", int(sys.argv[1])), Pages) as server:
        while has("open"):
            server.handle_request()
