"""A collector on loopback that takes OTLP over HTTP, and gives what came as plain values."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@dataclass
class Span:
    """`parent` is the span it belongs to, None for a root; times are in seconds."""

    name: str
    kind: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    is_error: bool
    told: str
    trace: str
    id: str
    parent_id: str
    start: float
    end: float
    resource: dict[str, Any]


@dataclass
class Collector:
    """What has come. `headers` are those of each request; `raw` are all bytes, decompressed."""

    url: str = ""
    status: int = 200
    answers: threading.Event = field(default_factory=threading.Event)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    raw: bytes = b""

    @property
    def spans(self) -> list[Span]:
        return [
            Span(
                span.name, span.kind, plain(span.attributes),
                [(event.name, plain(event.attributes)) for event in span.events],
                span.status.code == 2, span.status.message, span.trace_id.hex(), span.span_id.hex(),
                span.parent_span_id.hex(), span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9,
                plain(group.resource.attributes),
            )
            for body in self.bodies if isinstance(body, ExportTraceServiceRequest)
            for group in body.resource_spans for scope in group.scope_spans for span in scope.spans
        ]  # fmt: skip

    def span(self, name: str) -> Span:
        """The one span of that name."""
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]

    def parent(self, span: Span) -> str:
        """The name of a span's parent; empty for a root."""
        return next((one.name for one in self.spans if one.id == span.parent_id), "")

    @property
    def points(self) -> dict[str, list[Any]]:
        """The newest points of each metric."""
        return {
            metric.name: list((metric.histogram if metric.HasField("histogram") else metric.sum).data_points)
            for body in self.bodies if isinstance(body, ExportMetricsServiceRequest)
            for group in body.resource_metrics for scope in group.scope_metrics for metric in scope.metrics
        }  # fmt: skip


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes if isinstance(one, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind or "")


@contextmanager
def collector(*, answers: bool = True, status: int = 200) -> Iterator[Collector]:
    """One that `answers` with a `status`, or takes requests and stays silent."""
    came = Collector(status=status)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not answers:
                came.answers.wait(30)
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with lock:
                came.paths.append(self.path)
                came.headers.append({name.lower(): value for name, value in self.headers.items()})
                came.bodies.append(KINDS[self.path].FromString(body))
                came.raw += body
            self.send_response(came.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    came.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield came
    finally:
        came.answers.set()
        server.shutdown()
        server.server_close()
