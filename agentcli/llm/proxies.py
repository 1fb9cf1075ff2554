"""Chooses the proxy that leads to a server, as curl does (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY)."""

from __future__ import annotations

import os
import sys
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from agentcli.errors import ConfigError
from agentcli.llm.server_address import Origin, is_loopback, origin_of

_SCHEMES = ("http", "https", "socks5", "socks5h")
# RFC 1928 §6
_SOCKS_REFUSALS = (
    "Succeeded", "General SOCKS server failure", "Connection not allowed by ruleset", "Network unreachable",
    "Host unreachable", "Connection refused", "TTL expired", "Command not supported", "Address type not supported",
)  # fmt: skip


class Proxy(Struct, frozen=True):
    """A proxy; `url` is its address without the login."""

    url: str
    origin: Origin
    login: tuple[str, str] | None = None

    @property
    def is_socks(self) -> bool:
        return self.origin[0].startswith("socks")

    def authorization(self) -> dict[str, str]:
        """The header with the login, for what an HTTP proxy reads."""
        return {} if self.login is None else {"proxy-authorization": basic(*self.login)}


def basic(name: str, password: str) -> str:
    """A login as the value of an authorization header (RFC 7617)."""
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def proxy_for(address: str) -> Proxy | None:
    """The proxy that leads to `address`; None for a direct way, which loopback always is.

    Raises `ConfigError` for a variable that holds no usable proxy. The message never quotes it: it may hold a password.
    """
    try:
        url = urlsplit(address)
        _, host, _ = origin_of(url)
    except ValueError:
        return None  # the request will tell
    if is_loopback(host):
        return None
    known = _known_proxies()
    name = url.scheme if known.get(url.scheme) else "all"
    written = known.get(name, "").strip()
    if not written or _is_excepted(url, known.get("no", "")):
        return None
    proxy = _proxy(written)
    if proxy is None:
        raise ConfigError(
            "no usable proxy address: write it as http://HOST:PORT (or https, socks5, socks5h), or unset it.",
            key=f"{name.upper()}_PROXY",
        )
    return proxy


def _known_proxies() -> dict[str, str]:
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies  # 8 ms; elsewhere it asks the system, too

    return getproxies()


def _proxy(written: str) -> Proxy | None:
    scheme, _, rest = written.rpartition("://")
    scheme = {"": "http", "socks": "socks5"}.get(scheme.lower(), scheme)  # desktops write socks://
    try:
        url = urlsplit(f"{scheme}://{rest}")
        _, host, _ = origin = origin_of(url)
    except ValueError:
        return None
    is_whole = bool(host) and not any(map(" %".__contains__, host)) and url.path in ("", "/") and url.port != 0
    if url.scheme not in _SCHEMES or not is_whole:
        return None
    place = url.netloc.rpartition("@")[2]
    login = (unquote(url.username or ""), unquote(url.password or "")) if url.username or url.password else None
    return Proxy(f"{url.scheme}://{place}", origin, login)


async def lead_through(proxy: Proxy, reader: StreamReader, writer: StreamWriter, host: str, port: int) -> str:
    """Have `proxy` connect to a host; gives its reason where it refuses.

    Raises OSError, EOFError or ValueError where it breaks off or is no such proxy.
    """
    if proxy.is_socks:
        return await _through_socks(proxy, reader, writer, host, port)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = {"host": place, "accept": "*/*", **proxy.authorization()}
    lines = [f"CONNECT {place} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
    writer.write("\r\n".join(lines).encode())
    version, _, status = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0].decode("latin-1").partition(" ")
    if not version.startswith("HTTP/"):
        raise ValueError("this is no HTTP proxy")
    return "" if status.startswith("2") else status


async def _through_socks(proxy: Proxy, reader: StreamReader, writer: StreamWriter, host: str, port: int) -> str:
    """RFC 1928, with the login of RFC 1929. The proxy resolves the name."""
    writer.write(b"\x05\x01" + (b"\x00" if proxy.login is None else b"\x02"))
    version, method = await reader.readexactly(2)
    if version != 5:
        raise ValueError("this is no SOCKS5 proxy")
    if method != (0 if proxy.login is None else 2):
        return "the proxy wants a login" if proxy.login is None else "the proxy does not take this way to log in"
    if proxy.login is not None:
        writer.write(b"\x01" + b"".join(_counted(part) for part in proxy.login))
        if (await reader.readexactly(2))[1] != 0:
            return "Invalid username/password"
    try:
        address = ip_address(host)
        where = (b"\x01" if address.version == 4 else b"\x04") + address.packed
    except ValueError:
        where = b"\x03" + _counted(host)
    writer.write(b"\x05\x01\x00" + where + port.to_bytes(2, "big"))
    version, reply, _, kind = await reader.readexactly(4)
    if version != 5:
        raise ValueError("this is no SOCKS5 proxy")
    length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
    await reader.readexactly(length + 2)
    if reply == 0:
        return ""
    reason = _SOCKS_REFUSALS[reply] if reply < len(_SOCKS_REFUSALS) else str(reply)
    return f"Proxy Server could not connect: {reason}"


def _counted(text: str) -> bytes:
    """Raises ValueError for a text of over 255 bytes, which SOCKS cannot carry."""
    return bytes([len(text.encode())]) + text.encode()


def _is_excepted(url: SplitResult, exceptions: str) -> bool:
    """True if NO_PROXY names the host: itself, a domain above it, a network around it, each with a port or without."""
    _, host, port = origin_of(url)
    return any(_names(written, host, port) for written in exceptions.lower().replace(",", " ").split())


def _names(written: str, host: str, port: int) -> bool:
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
