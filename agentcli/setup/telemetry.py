"""Builds the export of traces and metrics from the settings and OpenTelemetry's own variables.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from agentcli.agent.session import Session
from agentcli.llm.models import preset_rows
from agentcli.models.providers import is_installed
from agentcli.settings.load import Config
from agentcli.version import __version__

if TYPE_CHECKING:
    from agentcli.infra.telemetry import Export, Telemetry

EXTRA = "./install.sh --extras otel, or pip install 'agentcli[otel]'"
SIGNALS = ("traces", "metrics")
_ADDRESS = "http://localhost:4318"  # OTLP over HTTP
# Providers without a preset: the variable that names their address, and the default.
_SERVERS = {
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "openai": ("OPENAI_BASE_URL", ""),
    "ollama": ("OLLAMA_HOST", "http://127.0.0.1:11434"),
}


@dataclass
class SessionExport:
    """Exports sessions as the settings say; where they export nothing, nothing is imported for it."""

    _config: Config
    _mask: Callable[[str], str]
    _on_notice: Callable[[str], None]
    _telemetry: Telemetry | None = None

    def follow(self, session: Session) -> None:
        """Export what happens in a session from now on, if the settings say so."""
        if not exported_to(self._config):
            return
        if not is_installed("opentelemetry.exporter.otlp.proto.http"):
            self._on_notice(f"Nothing is exported: [observability] needs the extra otel: {EXTRA}.")
            return
        if self._telemetry is None:
            from agentcli.infra.telemetry import Telemetry

            self._telemetry = Telemetry(make_export(self._config, self._mask))
        mask = session.runtime.calls.services.mask
        self._telemetry.follow(session, mask.text if mask else self._mask)

    async def aclose(self) -> None:
        """Send what there is; further sessions can be followed."""
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            await telemetry.aclose()


def exported_to(config: Config) -> dict[str, str]:
    """Return the URL of each signal that is exported."""
    settings, environment = config.settings.observability, config.environment.get
    signals = [signal for signal in SIGNALS if getattr(settings, signal)]
    if (
        not signals
        or environment("AGENTCLI_NO_TELEMETRY", "0") not in ("", "0")
        or environment("OTEL_SDK_DISABLED", "").lower() == "true"
    ):
        return {}
    base = (settings.endpoint or environment("OTEL_EXPORTER_OTLP_ENDPOINT") or _ADDRESS).rstrip("/")
    own_addresses = {
        signal: environment(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        for signal in signals
        if not settings.endpoint
    }
    return {signal: own_addresses.get(signal) or f"{base}/v1/{signal}" for signal in signals}


def make_export(config: Config, mask: Callable[[str], str]) -> Export:
    settings, environment = config.settings.observability, config.environment
    names = {"service.name": settings.service, "service.version": __version__}
    has_attribute = "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if settings.service == "agentcli" and (has_attribute or environment.get("OTEL_SERVICE_NAME")):
        del names["service.name"]  # the SDK takes it from these variables
    if settings.environment:
        names["deployment.environment.name"] = settings.environment
    parent = {name: environment[name.upper()] for name in ("traceparent", "tracestate") if name.upper() in environment}
    from agentcli.infra.telemetry import Export

    return Export(
        settings=settings,
        addresses=exported_to(config),
        resource=names | settings.tags,
        parent=parent,
        server=partial(_server, config),
        mask=mask,
    )


def _server(config: Config, provider: str) -> tuple[str, int]:
    """Return the host and port of a provider; an empty host where that is not known."""
    variable, default = _SERVERS.get(provider, ("", ""))
    server = config.settings.providers.get(provider)
    configured = (server.base_url if server else "") or config.environment.get(variable, "")
    address = configured or default or preset_rows().get(provider, {}).get("base_url", "")
    try:
        parts = urlsplit(address if "//" in address else f"http://{address}")
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80) if parts.hostname else 0
    except ValueError:  # no address; the provider that uses it reports that
        return "", 0


def sent_headers(config: Config, signal: str) -> dict[str, str]:
    """Return the headers for the collector, as the SDK reads them: the settings over the environment."""
    environment = config.environment.get
    text = environment(f"OTEL_EXPORTER_OTLP_{signal.upper()}_HEADERS") or environment("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    in_environment = {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}
    return in_environment | config.settings.observability.headers


def secret_headers(config: Config) -> list[str]:
    """Return the secrets in the headers for collectors: the values, also those for logs, and each of their words."""
    values = {value for signal in (*SIGNALS, "logs") for value in sent_headers(config, signal).values()}
    return [word for value in values for word in (value, *value.split())]
