"""Tells public network addresses from private and reserved ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address


def why_not_public(address: Address) -> str:
    """Describe an address that is not public, or the IPv4 address inside it; return "" for a public one."""
    address = embedded(address)
    for network, what in _NOT_PUBLIC:
        if address in network:
            return what
    if isinstance(address, IPv6Address) and int(address) >> 32 & 0xFDFFFFFF == _ISATAP:
        return "an address of an IPv4 tunnel"
    # Registries grow: Python's tables may know what the one below does not.
    return "" if address.is_global and not address.is_multicast else "a reserved address"


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped (RFC 4291 §2.5.5.2) or NAT64 (RFC 6052) address leads to, else `address`."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_metadata_service(address: Address) -> bool:
    """True if a cloud hands out its machine's credentials there. No grant opens such an address."""
    return any(embedded(address) in network for network in _METADATA)


def is_local_network(address: Address) -> bool:
    """True for an address of a home's or a company's own network."""
    return any(embedded(address) in network for network in _LOCAL_NETWORKS)


def is_loopback(address: Address) -> bool:
    return embedded(address).is_loopback


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


def as_address(text: str) -> Address:
    """Parse an address in its usual form. Raises ValueError for anything else, such as a zone (`fe80::1%eth0`)."""
    if "%" in text:
        raise ValueError(f"{text} names a zone")
    return ip_address(text)
