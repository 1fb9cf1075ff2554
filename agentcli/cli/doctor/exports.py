"""Checks what is exported: where it goes, and whether the collector takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentcli.cli.doctor.finding import Check, Said, Subject, ok, problem, warning
from agentcli.setup.telemetry import EXTRA, exported_to, has_extra, sent_headers

_LONGEST_ANSWER_S = 3.0


def telemetry(subject: Subject) -> Iterator[Said]:
    """An empty request is a valid one of each signal (OTLP 1.x)."""
    addresses = exported_to(subject.config)
    if not addresses:
        return
    if not has_extra():
        yield problem("[observability] exports, and the extra otel is not installed.", EXTRA)
        return
    for signal, address in addresses.items():
        if why := _refusal(address, sent_headers(subject.config, signal)):
            mend = "Start the collector, or correct observability.endpoint or observability.headers."
            yield warning(f"{signal} go to {address}, and are lost: {why}.", mend)
        else:
            yield ok(f"{signal} go to {address}")


def _refusal(address: str, headers: Mapping[str, str]) -> str:
    """Why a collector would not take what is sent; empty if it does."""
    import requests  # which the exporter uses: the same proxies and certificates count

    sent = {"content-type": "application/x-protobuf", **headers}
    try:
        answer = requests.post(address, b"", headers=sent, timeout=_LONGEST_ANSWER_S, allow_redirects=False)
    except requests.RequestException as error:
        return f"it does not answer ({type(error).__name__})"
    return "" if answer.ok and not answer.is_redirect else f"it answers {answer.status_code} {answer.reason}"


CHECKS: dict[str, Check] = {"telemetry": telemetry}
