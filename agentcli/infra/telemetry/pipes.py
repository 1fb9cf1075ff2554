"""Builds the SDK's pipes to a collector, one for each signal, and ends them within their time-outs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import requests
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from urllib3.exceptions import MaxRetryError

from agentcli.infra.telemetry.export import Export, MaskText
from agentcli.infra.telemetry.metrics import Metrics
from agentcli.infra.telemetry.tracing import TracedSession
from agentcli.settings.structs import Sampling
from agentcli.version import __version__

log = logging.getLogger(__name__)

_QUEUE = 2_048  # spans or records that wait; the oldest are dropped
_LONGEST_ATTRIBUTE = 32_768  # characters


def sampler(share: Sampling) -> Sampler:
    """Traces a share of all turns, whole. A parent's decision wins, unless nothing is to be traced."""
    if share == "never":
        return ALWAYS_OFF
    return ParentBased(TraceIdRatioBased(1.0 if share == "always" else int(share.rstrip("%")) / 100))


class Pipes:
    """The SDK's providers of the signals that are exported; what is recorded for the others goes nowhere.

    None of them is made the process's own: that place is the host program's.
    """

    def __init__(self, export: Export) -> None:
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_is_news)
        self._export, self._settings = export, export.settings
        self._resource = Resource.create({name: export.mask(text) for name, text in export.resource.items()})
        self._parent = TraceContextTextMapPropagator().extract(dict(export.parent), Context())
        self._ends: list[Callable[[], object]] = []
        self._sessions: dict[str, TracedSession] = {}
        self._tracer = self._made_tracer() if "traces" in export.addresses else NoOpTracer()
        self._metrics = Metrics(self._made_meter() if "metrics" in export.addresses else NoOpMeter("agentcli"))
        self._logs = self._made_logs() if "logs" in export.addresses else None

    def session(self, id: str, mask: MaskText) -> TracedSession:
        if id not in self._sessions:
            parts = self._export, self._tracer, self._metrics, self._parent, mask
            self._sessions[id] = TracedSession(id, *parts)
        return self._sessions[id]

    def log(self, record: logging.LogRecord, text: str) -> None:
        """Export a record of the program's log, as `text`."""
        assert self._logs is not None, "else no record comes"
        self._logs.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=time.time_ns(),
                severity_text=record.levelname,
                severity_number=SeverityNumber(min(21, 1 + record.levelno // 10 * 4)),
                body=text,
            )
        )

    def end(self) -> None:
        """Send what there is, all signals at once, for as long as their time-outs allow."""
        for session in self._sessions.values():
            session.close()
        threads = [threading.Thread(target=_ended, args=(end,), daemon=True) for end in self._ends]
        for thread in threads:
            thread.start()
        until = time.monotonic() + self._export.longest_end
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _how(self, signal: str, timeout: float) -> dict[str, Any]:
        """The arguments of an exporter."""
        return {
            "endpoint": self._export.addresses[signal],
            "headers": self._settings.headers,
            "compression": Compression(self._settings.compression),
            "timeout": timeout,
            "session": _Connections(),
        }

    def _made_tracer(self) -> Tracer:
        limits = SpanLimits(max_attribute_length=_LONGEST_ATTRIBUTE)
        share, resource = sampler(self._settings.sampling), self._resource
        provider = TracerProvider(share, resource, shutdown_on_exit=False, span_limits=limits)
        exporter = OTLPSpanExporter(**self._how("traces", self._settings.export_timeout))
        batch = self._settings.batch
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE, max_export_batch_size=batch))
        self._ends.append(provider.shutdown)
        return provider.get_tracer("agentcli", __version__)

    def _made_meter(self) -> Meter:
        exporter = OTLPMetricExporter(**self._how("metrics", self._settings.metrics_timeout))
        interval = self._settings.metric_interval * 1000
        reader = PeriodicExportingMetricReader(exporter, interval, self._settings.metrics_timeout * 1000)
        provider = MeterProvider([reader], self._resource, shutdown_on_exit=False)
        self._ends.append(provider.shutdown)
        return provider.get_meter("agentcli", __version__)

    def _made_logs(self) -> LoggerProvider:
        provider = LoggerProvider(self._resource, shutdown_on_exit=False)
        exporter = OTLPLogExporter(**self._how("logs", self._settings.export_timeout))
        batch = self._settings.batch
        provider.add_log_record_processor(
            BatchLogRecordProcessor(exporter, max_queue_size=_QUEUE, max_export_batch_size=batch)
        )
        self._ends.append(provider.shutdown)
        return provider


def _ended(end: Callable[[], object]) -> None:
    try:
        end()
    except Exception:  # it says that metrics came too late
        log.debug("an export did not end well", exc_info=True)


class _Connections(requests.Session):
    """The exporter's connections. It would try for as long as its time-out to reach a collector that is not there."""

    def request(self, *args: Any, **how: Any) -> requests.Response:
        try:
            return super().request(*args, **how)
        except requests.ConnectionError as error:
            if error.args and isinstance(error.args[0], MaxRetryError):
                raise requests.RequestException(f"the collector is out of reach ({error.args[0].reason})") from error
            raise


_TOLD: set[tuple[str, object]] = set()
_TALKATIVE = (  # the SDK tells of each batch that could not be sent
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.sdk._shared_internal",
)


def _is_news(record: logging.LogRecord) -> bool:
    """Lets each message through once."""
    key = (record.name, record.msg)
    is_news = key not in _TOLD
    _TOLD.add(key)
    return is_news
