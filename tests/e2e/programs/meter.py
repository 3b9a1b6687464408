"""Serves the numbers in a file of the run directory in the format of Prometheus.

python meter.py PORT FILE
"""

from __future__ import annotations

import http.server
import os
import sys
from pathlib import Path

NUMBERS = Path(os.environ["AGENTRL_RUN_DIR"]) / sys.argv[2]


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"# HELP reward_mean of the last step\n# TYPE reward_mean gauge\n" + NUMBERS.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Writes no line per scrape."""


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
