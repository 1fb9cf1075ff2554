"""Recognizes network addresses that are not public, and parses grants of hosts.

The grant `example.org` covers that host, and `*.example.org` every host below it but not itself, both on ports 80 and
443. `host:8080` covers only that port. Names are ASCII; others are written as `xn--…`. `addresses.toml` lists the
networks that are not public.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

from agentcli.patterns import lazy_pattern
from agentcli.tables import read_table

Address = IPv4Address | IPv6Address


def why_not_public(address: Address) -> str:
    """Describe an address that is not public, or the IPv4 address inside it; return "" for a public one."""
    address = unwrapped(address)
    # Python's tables may have networks that were reserved after addresses.toml was written.
    other_reason = "" if address.is_global and not address.is_multicast else "a reserved address"
    if isinstance(address, IPv6Address) and int(address) >> 32 & 0xFDFFFFFF == _ISATAP:
        other_reason = "an address of an IPv4 tunnel"
    return next((kind for network, kind in _networks("not_public").items() if address in network), other_reason)


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address in an IPv4-mapped (RFC 4291 §2.5.5.2) or NAT64 (RFC 6052) address, else `address`."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_metadata_service(address: Address) -> bool:
    """Return True for an address at which a cloud gives a machine its credentials. No grant opens such an address."""
    return any(unwrapped(address) in network for network in _networks("metadata_services"))


def is_local_network(address: Address) -> bool:
    return any(unwrapped(address) in network for network in _networks("local_networks"))


@cache
def _networks(kind: str) -> dict[IPv4Network | IPv6Network, str]:
    return {ip_network(network): description for network, description in read_addresses()[kind].items()}


@cache
def read_addresses() -> dict[str, Any]:
    return read_table(__file__, "addresses")


_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = 0x00005EFE  # the third quarter of an ISATAP address, apart from the bit for "global" (RFC 5214 §6.1)


def parse_address(text: str) -> Address | None:
    """Parse an address in its usual form. Return None for anything else, such as a zone (`fe80::1%eth0`)."""
    with suppress(ValueError):
        return ip_address(text) if "%" not in text else None
    return None


WEB_PORTS = (80, 443)
_LABEL = lazy_pattern(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER_LIKE = lazy_pattern(r"[0-9]+|0x[0-9a-f]*", re.ASCII)  # `127.1` and `0x7f000001` are addresses to many resolvers


class HostGrant(NamedTuple):
    """A host that the person has granted, or with `is_pattern` all hosts below it."""

    host: str  # without `*.`
    is_pattern: bool = False
    port: int | None = None  # None: the web's ports

    @property
    def is_this_machine(self) -> bool:
        return self.host in ("localhost", "127.0.0.1", "::1") and not self.is_pattern

    def with_port(self, port: int) -> str:
        """Return `host:port`; the caller chooses the port, because a grant without one covers several."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def covers(self, host: str, port: int) -> bool:
        """Return True if the grant covers a port of a host, which is in the form of `read_host`."""
        is_host = host.endswith(f".{self.host}") if self.is_pattern else host == self.host
        return is_host and port in (WEB_PORTS if self.port is None else (self.port,))


def find_grant(grants: Iterable[HostGrant], host: str, port: int) -> HostGrant | None:
    """Return the grant that covers a port of a host; an exact grant wins over a pattern."""
    return next((grant for grant in sorted(grants, key=lambda one: one.is_pattern) if grant.covers(host, port)), None)


def read_grant(text: str, *, allows_any_pattern: bool = False) -> HostGrant:
    """Parse a grant. Raises `ValueError`, with a message that says what to write instead.

    Patterns such as `*.org`, which cover too much, are only accepted with `allows_any_pattern`.
    """
    is_pattern = text.strip().startswith("*.")
    name_and_port = text.strip().removeprefix("*.")
    if "*" in name_and_port:
        raise ValueError(f"{text!r}: a * stands for whole names at the beginning, as in *.example.org.")
    host, port = split_port(name_and_port, default=None)
    name = read_host(host)
    if is_pattern and not allows_any_pattern and ("." not in name or parse_address(name)):
        raise ValueError(f"{text!r} covers too much: write *.example.org.")
    return HostGrant(name, is_pattern, port)


def split_port(text: str, *, default: int | None) -> tuple[str, int | None]:
    """Split a host from the port after it; an IPv6 address with a port is in brackets. Raises `ValueError`."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?", text, re.ASCII)
    if match is None:
        if text.count(":") > 1 and "[" not in text:  # an IPv6 address without a port
            return text, default
        raise ValueError(f"{text!r} is not a host and a port.")
    port = int(match[2]) if match[2] else default
    if port is not None and not 0 < port < 65_536:
        raise ValueError(f"{text!r} has no port from 1 to 65535.")
    return match[1].removeprefix("[").removesuffix("]"), port


def read_host(text: str) -> str:
    """Return a name or an address in canonical form. Raises `ValueError` for anything else."""
    if address := parse_address(text):
        return str(address)
    name = text.removesuffix(".").lower()
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:80]!r} is not the name of a host.")
    if _NUMBER_LIKE.fullmatch(labels[-1]):
        raise ValueError(f"{text[:80]!r} is neither a host name nor an address in its usual form, such as 192.0.2.1.")
    return name


def may_lead_to(grant: HostGrant, address: str) -> bool:
    """Return True if a granted host may be at this address.

    The owner of a name decides to which address it leads, so a granted name opens neither this machine nor a cloud's
    metadata service. It opens a private network only if the name itself was granted, not through a pattern. Other
    addresses that are not public must be granted themselves.
    """
    parsed = parse_address(address.partition("%")[0])  # without its zone
    if parsed is None:
        return False
    if str(parsed) == grant.host:
        return True
    if grant.host == "localhost" or grant.host.endswith(".localhost"):
        return unwrapped(parsed).is_loopback and not grant.is_pattern
    if is_metadata_service(parsed):
        return False
    return not why_not_public(parsed) or (is_local_network(parsed) and not grant.is_pattern)
