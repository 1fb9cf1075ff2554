"""Describes what is exported where, without importing anything of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

MaskText = Callable[[str], str]


class Export(Struct, frozen=True):
    """`addresses` holds the URL of each signal that is sent. Times are in seconds.

    `share` of the turns is traced, unless `parent` (the headers of W3C Trace Context) has decided. `resource` are
    attributes of everything. `server` gives the host and port where a provider is reached; the host is empty where that
    is not known.
    """

    addresses: Mapping[str, str]
    headers: Mapping[str, str]
    is_compressed: bool
    share: float
    batch: int
    timeout: float
    metrics_timeout: float
    metric_interval: float
    resource: Mapping[str, str]
    parent: Mapping[str, str]
    has_content: bool
    server: Callable[[str], tuple[str, int]]
    mask: MaskText

    @property
    def longest_end(self) -> float:
        """How long the last export may take; all signals end at the same time."""
        return max(
            self.timeout if self.addresses.keys() & {"traces", "logs"} else 0.0,
            self.metrics_timeout if "metrics" in self.addresses else 0.0,
        )
