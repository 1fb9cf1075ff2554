"""Reads grants of hosts, and decides which hosts and addresses they cover.

`example.org` is that host, `*.example.org` every host below it and not itself; both on the web's ports. `host:8080` is
that port alone. Names are ASCII; others are written as `xn--…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import NamedTuple

from agentcli.safety.addresses.networks import (
    Address,
    is_local_network,
    is_loopback,
    is_metadata_service,
    why_not_public,
)

WEB_PORTS = (80, 443)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER_LIKE = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)  # `127.1` and `0x7f000001` are addresses to many a resolver


class HostGrant(NamedTuple):
    """One grant. `host` is without its `*.`; a `port` of None is the web's ports."""

    host: str
    is_pattern: bool = False
    port: int | None = None

    def covers(self, host: str, port: int) -> bool:
        """True if it covers a normal host (`read_host`) and a port."""
        if port != self.port if self.port is not None else port not in WEB_PORTS:
            return False
        return host.endswith(f".{self.host}") if self.is_pattern else host == self.host


def find_grant(grants: Iterable[HostGrant], host: str, port: int) -> HostGrant | None:
    """The grant that covers a host, an exact one before a pattern."""
    covering = [grant for grant in grants if grant.covers(host, port)]
    return min(covering, key=lambda grant: grant.is_pattern, default=None)


def read_grant(text: str) -> HostGrant:
    """Raises `ValueError` with what to write instead."""
    pattern, _, rest = text.strip().rpartition("*.")
    if pattern or ("*" in rest):
        raise ValueError(f"{text!r}: a * stands for whole names at the beginning, as in *.example.org.")
    host, port = split_port(rest, default=None)
    is_pattern = text.strip().startswith("*.")
    name = read_host(host)
    if is_pattern and ("." not in name or _as_address(name) is not None):
        raise ValueError(f"{text!r} covers too much: write *.example.org.")
    return HostGrant(name, is_pattern, port)


def split_port(text: str, *, default: int | None) -> tuple[str, int | None]:
    """A host and the port after it; an IPv6 address with a port is in brackets. Raises `ValueError`."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?", text, re.ASCII)
    if match is None:
        if text.count(":") > 1 and "[" not in text:
            return text, default
        raise ValueError(f"{text!r} is not a host and a port.")
    port = int(match[2]) if match[2] else default
    if port is not None and not 0 < port < 65_536:
        raise ValueError(f"{text!r} has no such port.")
    return match[1].removeprefix("[").removesuffix("]"), port


def read_host(text: str) -> str:
    """A name or an address in the one way we compare it in. Raises `ValueError`: nothing is guessed or corrected."""
    address = _as_address(text)
    if address is not None:
        return str(address)
    name = text.removesuffix(".").lower()
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text!r} is not the name of a host.")
    if _NUMBER_LIKE.fullmatch(labels[-1]):
        raise ValueError(f"{text!r} is not an address as it is written, and no name either.")
    return name


def may_lead_to(grant: HostGrant, address: str) -> bool:
    """True if a granted host may be at this address.

    Its owner decides where a name leads, so one that was granted cannot be a way to this machine or to what a cloud
    tells its machines. A private network is reached by a name that was granted as it is, not through a pattern; any
    other address only when the address itself was granted.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if str(found) == grant.host:
        return True
    if grant.host == "localhost" or grant.host.endswith(".localhost"):
        return is_loopback(found) and not grant.is_pattern
    if is_metadata_service(found):
        return False
    return not why_not_public(found) or (is_local_network(found) and not grant.is_pattern)


def _as_address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
