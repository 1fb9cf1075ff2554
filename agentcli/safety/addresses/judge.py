"""Decides if an address may be fetched at once, only if the person agrees, or never."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from agentcli.safety.addresses.hosts import (
    as_address,
    is_local_network,
    is_loopback,
    is_metadata_service,
    read_grant,
    why_not_public,
)
from agentcli.safety.addresses.urls import BadUrl, WebUrl, parse_url


class UrlVerdict(msgspec.Struct, frozen=True):
    """`reason` says why an address is not fetched at once, in words that fit after a colon; empty for "allow"."""

    verdict: Literal["block", "ask", "allow"]
    reason: str = ""


LONGEST_SILENT_TARGET = 500  # characters of path and query sent to a known site unasked; longer ones may carry data out


def judge_url(
    url: str,
    *,
    granted_hosts: Collection[str] = (),
    known_urls: Collection[str] = (),
) -> UrlVerdict:
    """Judge an address as the model wrote it.

    `granted_hosts` are the person's own: `host`, `*.host`, `host:port` or `[v6]:port`; without a port, 80 and 443. A
    grant also opens a name or an address of the local network, but never a cloud's metadata service. `known_urls` were
    typed by the person or found by a search, in any form `parse_url` reads. The verdict is on the text alone: the
    addresses that the host resolves to are for `why_unreachable`.
    """
    try:
        parsed = parse_url(url)
    except BadUrl as error:
        return UrlVerdict("block", str(error))
    if blocked := why_blocked(parsed, granted_hosts):
        return UrlVerdict("block", blocked)
    if is_granted(parsed, granted_hosts) or _is_known(parsed, known_urls):
        return UrlVerdict("allow")
    if question := _why_asked(parsed):
        return UrlVerdict("ask", question)
    return UrlVerdict("allow")


def is_granted(url: WebUrl, granted_hosts: Iterable[str]) -> bool:
    return any(_covers(grant, url.host, url.port) for grant in granted_hosts)


def why_blocked(url: WebUrl, granted_hosts: Collection[str]) -> str:
    """The reason why no request may go to an address, as far as its text tells; empty if one may."""
    granted = is_granted(url, granted_hosts)
    if url.port in _PORTS_OF_OTHER_SERVICES and not granted:
        return f"port {url.port} belongs to another service than the web"
    if (address := url.address) is not None:
        return why_unreachable(str(address), url, granted_hosts)
    if granted:
        return ""
    if _is_local_name(url.host):
        return f"{url.host} is a name of this machine or its network"
    if _lies_below(url.host, _NAMES_OF_PRIVATE_ADDRESSES):
        return f"{url.host} stands for a private address"
    return ""


def why_unreachable(address: str, url: WebUrl, granted_hosts: Collection[str]) -> str:
    """The reason why a connection to `address`, one of those of `url`'s host, is refused; empty if it is allowed.

    A granted local name reaches what such a name stands for. A name that looks public reaches a private address only if
    that very address is granted as well, since its owner can point it anywhere at any time.
    """
    try:
        parsed = as_address(address)
    except ValueError:
        return f"{url.host} leads to {address}, which is not a plain address"
    what = why_not_public(parsed)
    if not what:
        return ""
    refusal = f"{url.host} is {what}" if url.host == address else f"{url.host} leads to {address}, {what}"
    if is_metadata_service(parsed):
        return refusal
    if any(_covers(grant, str(parsed), url.port) for grant in granted_hosts):
        return ""
    if is_granted(url, granted_hosts) and _is_local_name(url.host):
        is_own = is_loopback(parsed) if _is_this_machine(url.host) else is_local_network(parsed)
        return "" if is_own else refusal
    return refusal


def _why_asked(url: WebUrl) -> str:
    """The question for the person before a request goes out; empty for a page of a known site."""
    if url.has_userinfo:
        return f"the host is {url.host}; what stands before the @ is not, and is not sent"
    if url.address is not None:
        return "a bare network address"
    if "xn--" in url.host:
        return f"{url.host} stands for a name in other letters, which may imitate another name"
    if url.authority != url.host:
        return f"port {url.port} of {url.host}"
    if url.host not in _documentation_sites():
        size = len(url.target)
        data = f", and the address carries {size:,} characters to it" if size > LONGEST_SILENT_TARGET else ""
        return f"{url.host} is not one of the known documentation sites{data}"
    if url.scheme != "https":
        return "the connection is not encrypted"
    if len(url.target) > LONGEST_SILENT_TARGET:
        return f"the address is long and may carry data to {url.host}"
    return ""


@cache
def _documentation_sites() -> frozenset[str]:
    """The hosts of known_sites.toml."""
    groups = tomllib.loads(Path(__file__).with_name("known_sites.toml").read_text("utf-8"))
    return frozenset(host for hosts in groups.values() for host in hosts)


def _is_known(url: WebUrl, known_urls: Collection[str]) -> bool:
    for known in known_urls:
        with suppress(BadUrl):
            parsed = parse_url(known)
            secure = msgspec.structs.replace(parsed, scheme="https", port=443)
            if url == parsed or (parsed.port == 80 and url == secure):
                return True
    return False


def _covers(grant: str, host: str, port: int) -> bool:
    """True if one of the person's grants covers a host and port; one that cannot be read covers nothing."""
    with suppress(ValueError):
        return read_grant(grant, is_any_pattern_fine=True).covers(host, port)
    return False


def _lies_below(host: str, domains: Collection[str]) -> bool:
    labels = host.split(".")
    return any(".".join(labels[start:]) in domains for start in range(len(labels)))


def _is_this_machine(host: str) -> bool:
    return host in _OTHER_NAMES_OF_LOCALHOST or _lies_below(host, ("localhost",))


def _is_local_name(host: str) -> bool:
    return "." not in host or _is_this_machine(host) or _lies_below(host, _LOCAL_DOMAINS)


_OTHER_NAMES_OF_LOCALHOST = frozenset(
    "localhost.localdomain localhost4 localhost4.localdomain4 localhost6 localhost6.localdomain6 ip6-localhost "
    "ip6-loopback broadcasthost".split()
)
# Domains outside the public DNS: RFC 6761, 6762 (local), 7686 (onion), 8375 (home.arpa), 9476 (alt), ICANN's reserved
# "internal" (2024), the collisions ICANN keeps closed (corp, home, mail), reverse zones, and what routers, Kubernetes
# (svc, cluster.local) and clouds (metadata services) use.
_LOCAL_DOMAINS = frozenset(
    "local localdomain internal intranet intra private lan lan.home home home.arpa corp mail router onion "
    "invalid alt localdomain4 localdomain6 in-addr.arpa ip6.arpa svc cluster docker consul fritz.box "
    "metadata.tencentyun.com metadata.packet.net".split()
)
# Services that turn any name into a private address, and names known to lead to one. What counts is the address that a
# name resolves to; these are refused before it is resolved.
_NAMES_OF_PRIVATE_ADDRESSES = frozenset(
    "nip.io sslip.io xip.io ip6.name backname.io lvh.me vcap.me localtest.me lacolhost.com localh.st localho.st "
    "fuf.me local.gd traefik.me yoogle.com rbndr.us 1u.ms rebind.network rebind.it localdomain.pw "
    "spoofed.burpcollaborator.net spoofed.oastify.com bugbounty.dod.network".split()
)
# "Port blocking" of the WHATWG Fetch standard (https://fetch.spec.whatwg.org/#port-blocking, read 2026-11).
_PORTS_OF_OTHER_SERVICES = frozenset(
    int(port)
    for port in (
        "1 7 9 11 13 15 17 19 20 21 22 23 25 37 42 43 53 69 77 79 87 95 101 102 103 104 109 110 111 113 115 117 119 "
        "123 135 137 139 143 161 179 389 427 465 512 513 514 515 526 530 531 532 540 548 554 556 563 587 601 636 989 "
        "990 993 995 1719 1720 1723 2049 3659 4045 4190 5060 5061 6000 6566 6665 6666 6667 6668 6669 6679 6697 10080"
    ).split()
)
