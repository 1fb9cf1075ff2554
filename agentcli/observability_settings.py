"""The settings of `[observability]`: what is exported over OTLP, and what the program's log holds."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

Sampling = Literal["always", "50%", "10%", "1%", "never"]
LogOutput = Literal["file", "stderr"]
Timeout = Annotated[float, Meta(gt=0, le=60)]
MASKED = "[masked]"


class ObservabilitySettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is exported over OTLP ([telemetry.md](telemetry.md)), and the program's log.

    `traces`, `metrics` and `logs` are sent to `endpoint` (unset: `OTEL_EXPORTER_OTLP_ENDPOINT`, else
    `http://localhost:4318`) with these `headers`. `sampling` is the share of turns that are traced. Prompts, answers,
    arguments and results leave the machine only with `content`. `batch` spans or log records are sent together, metrics
    every `metric_interval` seconds; `export_timeout` and `metrics_timeout` are seconds. `service`, `environment` and
    `tags` name the resource.

    The log is `logs/agentcli.log` in the state folder. A file of `log_max_mb` is put aside; `log_keep` older ones stay.
    """

    traces: bool = False
    metrics: bool = False
    logs: bool = False
    sampling: Sampling = "10%"
    content: bool = False
    endpoint: Annotated[str, Meta(pattern=r"^$|^https?://\S+$")] = ""
    headers: dict[str, str] = {}
    compression: Literal["gzip", "none"] = "gzip"
    batch: Annotated[int, Meta(ge=1, le=2_048)] = 100
    export_timeout: Timeout = 5.0
    metrics_timeout: Timeout = 3.0
    metric_interval: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    service: str = "agentcli"
    environment: str = ""
    tags: dict[str, str] = {}
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"
    log_outputs: tuple[LogOutput, ...] = ("file",)
    log_max_mb: Annotated[float, Meta(gt=0, le=10_000)] = 10.0
    log_keep: Annotated[int, Meta(ge=1, le=100)] = 3

    def without_secrets(self) -> ObservabilitySettings:
        """The same for showing: names of headers without their values."""
        return replace(self, headers=dict.fromkeys(self.headers, MASKED))
