"""Knows which network addresses are public, and what a grant of a host covers.

The grant `example.org` covers that host, `*.example.org` every host below it but not itself, both on the web's ports.
`host:8080` covers that port alone. Names are ASCII; others are written as `xn--…`.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

from agentcli.patterns import lazy_pattern

Address = IPv4Address | IPv6Address


def why_not_public(address: Address) -> str:
    """Describe an address that is not public, or the IPv4 address inside it; return "" for a public one."""
    address = embedded(address)
    # Registries grow: Python's tables may know what the one below does not.
    known_to_python = "" if address.is_global and not address.is_multicast else "a reserved address"
    if isinstance(address, IPv6Address) and int(address) >> 32 & 0xFDFFFFFF == _ISATAP:
        known_to_python = "an address of an IPv4 tunnel"
    return next((kind for network, kind in _NOT_PUBLIC if address in network), known_to_python)


def embedded(address: Address) -> Address:
    """Return the IPv4 address in an IPv4-mapped (RFC 4291 §2.5.5.2) or NAT64 (RFC 6052) address, else `address`."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_metadata_service(address: Address) -> bool:
    """Return True if a cloud hands out its machine's credentials there. No grant opens such an address."""
    return any(embedded(address) in network for network in _METADATA)


def is_local_network(address: Address) -> bool:
    return any(embedded(address) in network for network in _LOCAL_NETWORKS)


# IANA's special-purpose registries for IPv4 and IPv6 (RFC 6890 and its updates, read 2026-11), since Python's versions
# differ, and the addresses of clouds' metadata services. Of IPv6 only 2000::/3 is in use as global unicast (RFC 4291
# §2.4), so the rest of the space is listed as a whole.
_NOT_PUBLIC = tuple(
    (ip_network(network), what)
    for network, what in (
        line.split(maxsplit=1)
        for line in """
    0.0.0.0/8           an address of this host
    10.0.0.0/8          a private address
    100.64.0.0/10       an address of a provider's own network
    127.0.0.0/8         a loopback address
    168.63.129.16/32    a cloud's metadata address
    169.254.0.0/16      a link-local or metadata address
    172.16.0.0/12       a private address
    192.0.0.0/24        an address of a protocol
    192.0.2.0/24        a documentation address
    192.88.99.0/24      an address of a 6to4 relay
    192.168.0.0/16      a private address
    198.18.0.0/15       a benchmark address
    198.51.100.0/24     a documentation address
    203.0.113.0/24      a documentation address
    224.0.0.0/4         a multicast address
    240.0.0.0/4         a reserved address
    ::/128              an address of this host
    ::1/128             a loopback address
    ::/96               an IPv4-compatible address
    ::ffff:0:0:0/96     an address of a translator
    64:ff9b:1::/48      an address of a translator
    2001::/23           an address of a protocol
    2001:db8::/32       a documentation address
    2002::/16           an address of a 6to4 tunnel
    3fff::/20           a documentation address
    fc00::/7            a private address
    fe80::/10           a link-local address
    fec0::/10           a private address
    ff00::/8            a multicast address
    ::/3                a reserved address
    4000::/2            a reserved address
    8000::/1            a reserved address
    """.strip().splitlines()
    )
)
_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = 0x00005EFE  # third quarter of the address, with or without the bit for "global" (RFC 5214 §6.1)
_METADATA = tuple(
    ip_network(line.split()[0])
    for line in """
    169.254.0.0/16       most clouds: 169.254.169.254; also task roles at 169.254.170.2
    168.63.129.16/32     Azure
    100.100.100.200/32   Alibaba
    192.0.0.192/32       Oracle
    fd00:ec2::/32        Amazon
    fd20:ce::/32         Google
    fe80::/10            link-local
    """.strip().splitlines()
)
_LOCAL_NETWORKS = tuple(map(ip_network, "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7".split()))


def parse_address(text: str) -> Address | None:
    """Parse an address in its usual form. Return None for anything else, such as a zone (`fe80::1%eth0`)."""
    with suppress(ValueError):
        return ip_address(text) if "%" not in text else None
    return None


WEB_PORTS = (80, 443)
_LABEL = lazy_pattern(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER_LIKE = lazy_pattern(r"[0-9]+|0x[0-9a-f]*", re.ASCII)  # `127.1` and `0x7f000001` are addresses to many resolvers


class HostGrant(NamedTuple):
    """A host that the person opened, or with `is_pattern` all hosts below it."""

    host: str  # without `*.`
    is_pattern: bool = False
    port: int | None = None  # None: the web's ports

    @property
    def is_this_machine(self) -> bool:
        return self.host in ("localhost", "127.0.0.1", "::1") and not self.is_pattern

    def address(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def covers(self, host: str, port: int) -> bool:
        """Return True if the grant covers a port of a host, which is in the form of `read_host`."""
        is_host = host.endswith(f".{self.host}") if self.is_pattern else host == self.host
        return is_host and port in (WEB_PORTS if self.port is None else (self.port,))


def find_grant(grants: Iterable[HostGrant], host: str, port: int) -> HostGrant | None:
    """Return the grant that covers a port of a host; an exact grant wins over a pattern."""
    return next((grant for grant in sorted(grants, key=lambda one: one.is_pattern) if grant.covers(host, port)), None)


def read_grant(text: str, *, is_any_pattern_fine: bool = False) -> HostGrant:
    """Parse a grant.

    Raises:
        ValueError: If it is no grant, or a pattern such as `*.org` that covers too much, unless any pattern is fine.
            The message says what to write instead.
    """
    is_pattern = text.strip().startswith("*.")
    name_and_port = text.strip().removeprefix("*.")
    if "*" in name_and_port:
        raise ValueError(f"{text!r}: a * stands for whole names at the beginning, as in *.example.org.")
    host, port = split_port(name_and_port, default=None)
    name = read_host(host)
    if is_pattern and not is_any_pattern_fine and ("." not in name or parse_address(name)):
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
    """Return a name or an address in the one form that is compared. Raises `ValueError`: nothing is guessed."""
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

    The owner of a name decides where it leads. A granted name is therefore no way to this machine, nor to a cloud's
    metadata. It may lead into a private network if it was granted itself, not through a pattern. All other addresses
    must be granted themselves.
    """
    parsed = parse_address(address.partition("%")[0])  # without its zone
    if parsed is None:
        return False
    if str(parsed) == grant.host:
        return True
    if grant.host == "localhost" or grant.host.endswith(".localhost"):
        return embedded(parsed).is_loopback and not grant.is_pattern
    if is_metadata_service(parsed):
        return False
    return not why_not_public(parsed) or (is_local_network(parsed) and not grant.is_pattern)
