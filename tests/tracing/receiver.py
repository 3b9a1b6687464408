"""A receiver for OTLP over HTTP that reads what collectors read: protobuf, in requests of many spans."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        """The newest span of each name."""
        self.all: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.schemas: set[str] = set()
        self.tokens: set[str] = set()
        self.url = ""

    def take(self, body: bytes, token: str) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.tokens.add(token)
        for of_resource in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in of_resource.resource.attributes})
            for of_scope in of_resource.scope_spans:
                self.schemas.add(of_scope.schema_url)
                for span in of_scope.spans:
                    self.all.append(span)
                    self.spans[span.name] = span

    def attributes(self, name: str) -> dict[str, Any]:
        made = {}
        for each in self.spans[name].attributes:
            made[each.key] = getattr(each.value, each.value.WhichOneof("value"))
        return made


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(body, self.headers.get("authorization", ""))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
