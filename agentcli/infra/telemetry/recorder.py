"""Sets up OpenTelemetry's SDK, which sends the spans and metrics of sessions to a collector.

Everything here runs in the thread of `Telemetry`.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from urllib3.exceptions import MaxRetryError

from agentcli.agent.events import Event
from agentcli.infra.telemetry import Export, MaskText, Signal
from agentcli.infra.telemetry.spans import Metrics, SessionSpans
from agentcli.settings.structs import ObservabilitySettings, Sampling
from agentcli.version import __version__

T = TypeVar("T")

log = logging.getLogger(__name__)

_MAX_WAITING_SPANS = 2_048  # if more wait, the oldest are dropped
_MAX_ATTRIBUTE_CHARS = 32_768


def sampler(share: Sampling) -> Sampler:
    """Return a sampler for a share of all turns. A parent's decision wins, unless the share is `never`."""
    if share == "never":
        return ALWAYS_OFF
    return ParentBased(TraceIdRatioBased(1.0 if share == "always" else int(share.rstrip("%")) / 100))


class SpanRecorder:
    """Records with providers of its own, because the SDK's global providers belong to the host program."""

    def __init__(self, export: Export) -> None:
        for name in _REPEATING_LOGGERS:
            logging.getLogger(name).addFilter(_is_new_message)
        self._export, self._settings = export, export.settings
        self._resource = Resource.create({name: export.mask(text) for name, text in export.resource.items()})
        self._parent = TraceContextTextMapPropagator().extract(dict(export.parent), Context())
        self._shutdowns: list[Callable[[], object]] = []  # those of the providers
        self._sessions: dict[str, SessionSpans] = {}
        self._tracer = self._make_tracer() if "traces" in export.signals else NoOpTracer()
        self._metrics = Metrics(self._make_meter() if "metrics" in export.signals else NoOpMeter("agentcli"))

    def record(self, session_id: str, at_ns: int, event: Event, *, model: str, mask: MaskText) -> None:
        """Record an event that came `at_ns` nanoseconds since 1970, when the session's model was `model`."""
        if session_id not in self._sessions:
            traces = self._tracer, self._parent
            self._sessions[session_id] = SessionSpans(session_id, self._export, traces, self._metrics, mask=mask)
        self._sessions[session_id].record(at_ns, event, model)

    def end(self) -> None:
        """Send the rest, all signals at the same time, for as long as their time-outs allow."""
        for session in self._sessions.values():
            session.close()
        threads = [threading.Thread(target=_shut_down, args=(each,), daemon=True) for each in self._shutdowns]
        for thread in threads:
            thread.start()
        until = time.monotonic() + self._export.last_export_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _exporters(self, signal: Signal, otlp: Callable[..., T], console: Callable[..., T]) -> list[T]:
        destination = {"endpoint": signal.endpoint, "headers": self._settings.headers, "timeout": signal.timeout_s}
        options = {**destination, "compression": Compression(self._settings.compression), "session": _Connections()}
        # The console exporters write to stderr, because stdout is for answers.
        return [otlp(**options) if name == "otlp" else console(out=sys.stderr) for name in signal.exporters]

    def _make_tracer(self) -> Tracer:
        share, limits = self._settings.sampling, SpanLimits(max_attribute_length=_MAX_ATTRIBUTE_CHARS)
        is_default = share == ObservabilitySettings().sampling
        # If only the environment enables traces, it also decides on sampling; by default the SDK then exports all.
        follows_environment = is_default and ("OTEL_TRACES_SAMPLER" in os.environ or not self._settings.traces)
        sampling = None if follows_environment else sampler(share)
        provider = TracerProvider(sampling, self._resource, shutdown_on_exit=False, span_limits=limits)
        batch = self._settings.batch
        for exporter in self._exporters(self._export.signals["traces"], OTLPSpanExporter, ConsoleSpanExporter):
            processor = BatchSpanProcessor(exporter, max_queue_size=_MAX_WAITING_SPANS, max_export_batch_size=batch)
            provider.add_span_processor(processor)
        self._shutdowns.append(provider.shutdown)
        return provider.get_tracer("agentcli", __version__)

    def _make_meter(self) -> Meter:
        signal, interval_s = self._export.signals["metrics"], self._settings.metric_interval
        is_default = interval_s == ObservabilitySettings().metric_interval
        interval_ms = None if is_default else interval_s * 1000  # None: the SDK reads OTEL_METRIC_EXPORT_INTERVAL
        exporters = self._exporters(signal, OTLPMetricExporter, ConsoleMetricExporter)
        readers = [PeriodicExportingMetricReader(each, interval_ms, signal.timeout_s * 1000) for each in exporters]
        provider = MeterProvider(readers, self._resource, shutdown_on_exit=False)
        self._shutdowns.append(provider.shutdown)
        return provider.get_meter("agentcli", __version__)


def _shut_down(end: Callable[[], object]) -> None:
    try:
        end()
    except Exception:  # the SDK raises if the metrics come too late
        log.debug("an export did not end well", exc_info=True)


class _Connections(requests.Session):
    """An exporter's connections. Exporters retry after a `ConnectionError`, which is useless if no collector runs."""

    def request(self, *args: Any, **options: Any) -> requests.Response:
        try:
            return super().request(*args, **options)
        except requests.ConnectionError as error:
            if error.args and isinstance(error.args[0], MaxRetryError):
                raise requests.RequestException(f"the collector is out of reach ({error.args[0].reason})") from error
            raise


_OTLP = "opentelemetry.exporter.otlp.proto.http"
# The SDK logs each batch that could not be sent; each message is let through once.
_REPEATING_LOGGERS = (f"{_OTLP}.trace_exporter", f"{_OTLP}.metric_exporter", "opentelemetry.sdk._shared_internal")
_LOGGED: set[tuple[str, object]] = set()  # loggers and their messages so far


def _is_new_message(record: logging.LogRecord) -> bool:
    is_new = (record.name, record.msg) not in _LOGGED
    _LOGGED.add((record.name, record.msg))
    return is_new
