"""Chooses the proxy that leads to a server, as curl does: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import asyncio
import sys
from asyncio import Timeout
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from urllib.request import getproxies

import httpx2

from agentcli.errors import ConfigError

LARGEST_PORT = 65_535


def proxy_for(address: str) -> httpx2.Proxy | None:
    """The proxy that leads to `address`; None for a direct way, which loopback always is.

    Raises `ConfigError` for a variable that holds no usable proxy. The message never quotes it: it may hold a password.
    """
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        return None  # the request will tell
    known = getproxies()
    name = url.scheme if known.get(url.scheme) else "all"
    written = known.get(name, "").strip()
    if not written or is_loopback(url.host) or _is_excepted(url, known.get("no", "")):
        return None
    proxy = _proxy(written)
    if proxy is None:
        raise ConfigError(
            "no usable proxy address: write it as http://HOST:PORT (or https, socks5, socks5h), or unset it.",
            key=f"{name.upper()}_PROXY",
        )
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ConfigError(
            "a SOCKS proxy needs the package socksio: install it beside agentcli (pip install socksio).",
            key=f"{name.upper()}_PROXY",
        )
    return proxy


def transport_failures() -> tuple[type[Exception], ...]:
    """What a request raises when it fails on the way: httpx2's errors, and those of a SOCKS proxy once one was used."""
    socks = sys.modules.get("socksio")
    failures: tuple[type[Exception], ...] = (httpx2.RequestError, httpx2.InvalidURL, UnicodeError)
    return failures if socks is None else (*failures, socks.SOCKSError)


def tunnel_within(
    seconds: float, limit: Timeout, proxy: httpx2.Proxy, target: httpx2.URL
) -> Callable[[str, object], Awaitable[None]]:
    """Bounds a proxy's handshake, which httpx2 gives as long as a reply: the `trace` of a request sent within `limit`.

    A proxy that is handed a plain request has no handshake.
    """
    has_handshake = proxy.url.scheme.startswith("socks") or target.scheme == "https"

    async def trace(event: str, _: object) -> None:
        where, _, step = event.partition(".")
        if step == "connect_tcp.complete" and has_handshake:
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
        elif step == "setup_socks5_connection.complete" or (step == "start_tls.started" and where != "connection"):
            limit.reschedule(None)

    return trace


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy(written: str) -> httpx2.Proxy | None:
    scheme, _, rest = written.rpartition("://")
    scheme = {"": "http", "socks": "socks5"}.get(scheme.lower(), scheme)  # desktops write socks://
    try:
        proxy = httpx2.Proxy(f"{scheme}://{rest}")
    except (httpx2.InvalidURL, ValueError):
        return None
    host, port = proxy.url.host, proxy.url.port
    is_whole = bool(host) and "%" not in host and proxy.url.path in ("", "/")
    return proxy if is_whole and (port is None or 0 < port <= LARGEST_PORT) else None


def _is_excepted(url: httpx2.URL, exceptions: str) -> bool:
    """True if NO_PROXY names the host: itself, a domain above it, a network around it, each with a port or without."""
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return any(_names(written, url.host.lower(), port) for written in exceptions.lower().replace(",", " ").split())


def _names(written: str, host: str, port: int | None) -> bool:
    written = written.rpartition("://")[2]
    if written == "*":
        return True
    if written.count(":") == 1 or "]:" in written:
        written, _, only_port = written.rpartition(":")
        if only_port != str(port):
            return False
    try:
        return ip_address(host) in ip_network(written.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        pass
    domain = written.removeprefix("*").removeprefix(".").rstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))
