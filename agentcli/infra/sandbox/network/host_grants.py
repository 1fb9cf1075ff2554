"""Reads grants of hosts, and decides which hosts and addresses they cover.

`example.org` is that host, `*.example.org` every host below it and not itself; both on the web's ports. `host:8080` is
that port alone. Names are ASCII; others are written as `xn--…`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

WEB_PORTS = (80, 443)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER_LIKE = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)  # `127.1` and `0x7f000001` are addresses to many a resolver
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Where a company or a home has its own servers; what a cloud tells its machines about themselves is elsewhere.
_PRIVATE = [
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]
_METADATA = [ipaddress.ip_network(network) for network in ("100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::/32")]


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
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if str(found) == grant.host:
        return True
    inner = _inner(found)
    if grant.host == "localhost" or grant.host.endswith(".localhost"):
        return inner.is_loopback and not grant.is_pattern
    if any(inner in network for network in _METADATA if network.version == inner.version):
        return False
    if inner.is_global and not inner.is_multicast:
        return True
    return not grant.is_pattern and any(inner in network for network in _PRIVATE if network.version == inner.version)


def _inner(address: _Address) -> _Address:
    """The IPv4 address inside an IPv6 one that stands for it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _as_address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
