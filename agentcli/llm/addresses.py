"""Reads the addresses of servers and chooses the proxy that leads to one, as curl does (HTTP_PROXY, NO_PROXY, …)."""

import os
import re
import sys
from base64 import b64encode
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from agentcli.errors import ConfigError

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class Proxy(Struct, frozen=True):
    """A proxy. `url` is its address without the login."""

    url: str
    origin: Origin
    login: tuple[str, str] | None = None

    @property
    def is_socks(self) -> bool:
        return self.origin.scheme.startswith("socks")

    def authorization(self) -> dict[str, str]:
        return {} if self.login is None else {"proxy-authorization": basic_auth(*self.login)}


def basic_auth(name: str, password: str) -> str:
    """Return a login as the value of an authorization header (RFC 7617)."""
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def is_address(written: str, schemes: tuple[str, ...] = ("http", "https")) -> bool:
    """Return True for an address whose host can be looked up and whose port, if it has one, exists."""
    try:
        parts = urlsplit(written)
        host = origin_of(parts).host
        is_whole = parts.scheme in schemes and bool(host) and parts.port != 0
    except ValueError:
        return False
    # `urlsplit` takes any character in a host.
    return is_whole and written.isprintable() and not any(character in host for character in ' <>"^`{|}\\%')


def origin_of(url: SplitResult) -> Origin:
    """Return scheme, host and port; a name in another script is written as in DNS. Raises `ValueError`."""
    return Origin(url.scheme, (url.hostname or "").encode("idna").decode(), url.port or _PORTS.get(url.scheme, 0))


def authority_of(host: str, port: int, *, default_port: int = 0) -> str:
    """Return a host with its port, unless that is the default one."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port == default_port else f"{shown}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_header_name(written: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", written) is not None  # RFC 9110 §5.6.2


def ollama_address(written: str) -> str:
    """Return the address in OLLAMA_HOST as Ollama reads it: a host or a port is enough, and 0.0.0.0 means loopback."""
    scheme, _, address = written.strip().rpartition("://")
    place, slash, path = address.partition("/")
    if place.count(":") > 1 and "[" not in place and "@" not in place:  # a bare IPv6 address
        place = f"[{place}]"
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):  # the colons of an IPv6 address belong to the host
        host, colon, port = place, "", ""
    if not scheme:  # with one, a missing port is that of the scheme
        colon, port = ":", port or "11434"  # Ollama's own
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  only dialled
    return f"{scheme or 'http'}://{reached}{colon}{port}{slash}{path}"


def proxy_for(address: str) -> Proxy | None:
    """Return the proxy that leads to `address`; None for a direct connection, as to loopback. Raises `ConfigError`."""
    try:
        url = urlsplit(address)
        _, host, port = origin_of(url)
    except ValueError:
        return None  # the request will fail with a better message
    has_settings = sys.platform != "linux" or any(name.lower().endswith("_proxy") for name in os.environ)
    if is_loopback(host) or not has_settings:
        return None
    from urllib.request import getproxies  # 8 ms; on macOS it asks the system, too

    known = getproxies()  # {"http": …, "https": …, "all": …, "no": …}
    name = url.scheme if known.get(url.scheme) else "all"
    written = known.get(name, "").strip()
    exceptions = known.get("no", "").lower().replace(",", " ").split()
    if not written or any(_is_excepted(exception, host, port) for exception in exceptions):
        return None
    scheme, _, place = written.rpartition("://")
    scheme = {"": "http", "socks": "socks5"}.get(scheme.lower(), scheme)  # desktops write socks://
    written = f"{scheme}://{place}"
    if not is_address(written, tuple(_PORTS)) or (proxy := urlsplit(written)).path not in ("", "/"):
        raise ConfigError(
            "no usable proxy address: write it as http://HOST:PORT (or https, socks5, socks5h), or unset it.",
            key=f"{name.upper()}_PROXY",
        )
    login = (unquote(proxy.username or ""), unquote(proxy.password or "")) if proxy.username or proxy.password else None
    return Proxy(f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}", origin_of(proxy), login)


def _is_excepted(exception: str, host: str, port: int) -> bool:
    """Return True if a part of NO_PROXY names the host itself or a domain above it, with or without its port."""
    # The forms are example.org, .example.org, *.example.org:8080, https://example.org and [::1].
    domain = exception.rpartition("://")[2].removesuffix(f":{port}").strip("[]*.")
    return exception == "*" or (bool(domain) and f".{host}".endswith(f".{domain}"))
