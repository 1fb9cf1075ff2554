"""Reads the address of a server: whether it can be one, where it leads, and what OLLAMA_HOST leaves out of it."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

OLLAMA_PORT = 11_434

Origin = tuple[str, str, int]  # scheme, host, port


def is_address(written: str) -> bool:
    """True for an http(s) address with a host, and a port that exists where it has one."""
    try:
        parts = urlsplit(written)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def origin_of(url: SplitResult) -> Origin:
    """Scheme, host and port; a name in another script is written as DNS has it. Raises ValueError."""
    port = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}.get(url.scheme, 0)
    host = url.hostname or ""
    return url.scheme, host if host.isascii() else host.encode("idna").decode(), url.port or port


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_header_name(written: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", written) is not None  # RFC 9110 §5.6.2


def ollama_address(written: str) -> str:
    """OLLAMA_HOST as Ollama reads it: a bare host, a port or both will do; where it listens is where it is reached."""
    scheme, mark, rest = written.strip().rpartition("://")
    place, slash, path = rest.partition("/")
    if _is_ipv6(place):
        place = f"[{place}]"
    host, colon, port = (place, "", "") if place.endswith("]") else place.partition(":")
    if host.startswith("[") and colon:
        host, colon, port = place.rpartition(":")
    if not mark:  # with a scheme, its own port counts
        colon, port = ":", port or str(OLLAMA_PORT)
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"{scheme or 'http'}://{reached}{colon}{port}{slash}{path}"


def _is_ipv6(place: str) -> bool:
    try:
        IPv6Address(place)
    except ValueError:
        return False
    return True
