"""Describes what is exported where, without importing anything of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from agentcli.settings.structs import ObservabilitySettings

MaskText = Callable[[str], str]


class Export(Struct, frozen=True):
    """`addresses` holds the URL of each signal that is sent, `resource` attributes of everything.

    `parent` are the headers of W3C Trace Context. `server` gives the host and port where a provider is reached; the
    host is empty where that is not known.
    """

    settings: ObservabilitySettings
    addresses: Mapping[str, str]
    resource: Mapping[str, str]
    parent: Mapping[str, str]
    server: Callable[[str], tuple[str, int]]
    mask: MaskText

    @property
    def longest_end(self) -> float:
        """How many seconds the last export may take; all signals end at the same time."""
        timeouts = dict.fromkeys(("traces", "logs"), self.settings.export_timeout)
        timeouts["metrics"] = self.settings.metrics_timeout
        return max(timeouts[name] for name in self.addresses)
