"""Parses web addresses strictly: what two programs could read differently is refused, never guessed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote, urljoin

import msgspec

from agentcli.safety.addresses.hosts import Address, as_address, is_address, read_host, split_port

LONGEST_URL = 16_000  # characters

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_USERINFO = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%(?!23|2[fF]|3[aAfF]|40|5[bBcCdD]|[01]|7[fF])[0-9A-Fa-f]{2})*")
# Left alone in a path or query; everything else is percent-encoded as UTF-8.
_KEPT = "!#$%&'()*+,/:;=?@[]~|^{}\"<>`"
_ENCODED = re.compile(r"[\"<>`{}|^\\]|%(?![0-9A-Fa-f]{2})")


class BadUrl(ValueError):
    """Not a web address that this program opens. The message says what is wrong with it."""


class WebUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address in canonical form: `host` in ASCII without brackets or trailing dot, `target` percent-encoded.

    What precedes `@` is never sent; `has_userinfo` says that there was something. The fragment is dropped.
    """

    scheme: str
    host: str
    port: int
    target: str
    has_userinfo: bool = False

    @property
    def address(self) -> Address | None:
        """The network address that the host is; None for a name."""
        return as_address(self.host) if is_address(self.host) else None

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the scheme's own: the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> WebUrl:
    """Raises `BadUrl`."""
    if not text:
        raise BadUrl("the address is empty")
    if len(text) > LONGEST_URL:
        raise BadUrl(f"the address is longer than {LONGEST_URL:,} characters")
    if text != text.strip() or any(unicodedata.category(sign) in ("Cc", "Cs") for sign in text):
        raise BadUrl("the address holds a control character, or a space at an end")
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise BadUrl("the address does not begin with https:// or http://")
    name = scheme[1].lower()
    if name not in _DEFAULT_PORTS:
        raise BadUrl(f"only https and http addresses are opened, not {name}")
    rest = text[scheme.end() :].partition("#")[0]
    if "\\" in rest.partition("?")[0]:
        raise BadUrl("the address holds a backslash")
    if not rest.startswith("//") or rest[2:3] in ("", "/", "?"):
        raise BadUrl(f"the address is not written as {name}://host/path")
    authority = re.split(r"[/?]", rest[2:], maxsplit=1)[0]
    if any(unicodedata.category(sign) == "Cf" for sign in authority):
        raise BadUrl("the host holds an invisible character")
    userinfo, at, place = authority.rpartition("@")
    if not _USERINFO.fullmatch(userinfo):
        raise BadUrl("the part before @ holds characters that have no place there")
    host, port = _host_and_port(place, _DEFAULT_PORTS[name])
    target = _target(rest[2 + len(authority) :])
    return WebUrl(scheme=name, host=host, port=port, target=target, has_userinfo=bool(at))


def join_url(base: WebUrl, reference: str) -> WebUrl:
    """The address that a `Location` header means on the page `base`. Raises `BadUrl`."""
    try:
        joined = urljoin(str(base), reference)
    except ValueError as error:
        raise BadUrl(str(error)) from error
    return parse_url(joined)


def urls_in(text: str) -> Iterable[str]:
    """The web addresses in a text that a person wrote, without the punctuation that ends a sentence."""
    for found in re.findall(r"https?://[^\s<>\"'`]{1,4000}", text):
        url = found.rstrip(".,;:!?*_")
        while url.endswith((")", "]", "}")) and url.count(url[-1]) > url.count("([{"[")]}".index(url[-1])]):
            url = url[:-1].rstrip(".,;:!?*_")
        yield url


def _host_and_port(place: str, default_port: int) -> tuple[str, int]:
    try:
        host, port = split_port(place.removesuffix(":"), default=default_port)
    except ValueError as error:
        raise BadUrl(f"{place[:80]!r} is not a host and a port") from error
    if place.startswith("[") != (":" in host):
        raise BadUrl(f"{place[:80]!r} is not a host: brackets stand around an IPv6 address, and only there")
    return _host(host), port or default_port


def _host(written: str) -> str:
    if not written:
        raise BadUrl("the address has no host")
    host = written.lower() if written.isascii() else _in_ascii(written)
    # As browsers do (WHATWG URL, "ends in a number"): such a host is an address, and here only in its usual form.
    try:
        host = read_host(host)
    except ValueError as error:
        raise BadUrl(str(error).removesuffix(".")) from error
    for label in host.split("."):
        if label.startswith("xn--") and not _is_punycode(label):
            raise BadUrl(f"{label} is not a host name")
    return host


def _in_ascii(host: str) -> str:
    """An internationalized name as DNS knows it (RFC 5891, with the mapping of Unicode TS 46)."""
    import idna  # 3 ms, which few addresses need

    try:
        return idna.encode(host, uts46=True).decode()
    except UnicodeError as error:  # as IDNAError is
        raise BadUrl(f"{host[:80]!r} is not a host name") from error


def _is_punycode(label: str) -> bool:
    import idna

    try:
        return bool(idna.encode(idna.decode(label)).decode() == label)
    except UnicodeError:
        return False


def _target(text: str) -> str:
    path, mark, query = text.partition("?")
    encoded = quote((path or "/") + mark + query, safe=_KEPT)
    return _ENCODED.sub(lambda found: f"%{ord(found[0]):02X}", encoded)
