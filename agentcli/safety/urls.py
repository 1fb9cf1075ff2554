"""Parses web addresses strictly, and judges if one may be fetched unasked, only if the person agrees, or never.

It refuses addresses that two programs could read differently.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from typing import Literal
from urllib.parse import quote, urljoin

import msgspec

from agentcli.patterns import lazy_pattern
from agentcli.safety import hosts
from agentcli.tables import read_table

MAX_URL_CHARS = 16_000
MAX_SILENT_TARGET_CHARS = 500  # of path and query; longer ones lead to a question, because they may carry data out

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*):")
_USERINFO = lazy_pattern(  # without encoded delimiters and control characters, which some programs would decode
    r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%(?!23|2[fF]|3[aAfF]|40|5[bBcCdD]|[01]|7[fF])[0-9A-Fa-f]{2})*"
)
# ASCII punctuation that `quote` leaves alone in a path or query; other characters are percent-encoded as UTF-8.
_UNENCODED = "!#$%&'()*+,/:;=?@[]~|^{}\"<>`"
_OPENING_BRACKETS = {")": "(", "]": "[", "}": "{"}
_ENCODED = lazy_pattern(r"[\"<>`{}|^\\]|%(?![0-9A-Fa-f]{2})")  # these too, but not the `%` of an encoding


class BadUrl(ValueError):
    """The text is not a web address that agentcli opens. The message says what is wrong with it."""


class WebUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address in canonical form. The fragment is dropped."""

    scheme: str
    host: str  # ASCII, without brackets or trailing dot
    port: int
    target: str  # path and query, percent-encoded
    has_userinfo: bool = False  # something came before an `@`; it is never sent

    @property
    def address(self) -> hosts.Address | None:
        return hosts.parse_address(self.host)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # an IPv6 address is in brackets
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> WebUrl:
    """Parse a web address. Raises `BadUrl`."""
    if not text:
        raise BadUrl("the address is empty")
    if len(text) > MAX_URL_CHARS:
        raise BadUrl(f"the address is longer than {MAX_URL_CHARS:,} characters")
    if text != text.strip() or any(unicodedata.category(sign) in ("Cc", "Cs") for sign in text):
        raise BadUrl("the address contains a control character, or begins or ends with a space")
    scheme_match = _SCHEME.match(text)
    if scheme_match is None:
        raise BadUrl("the address does not begin with https:// or http://")
    scheme = scheme_match[1].lower()
    if scheme not in _DEFAULT_PORTS:
        raise BadUrl(f"only https and http addresses are opened, not {scheme}")
    after_scheme = text[scheme_match.end() :].partition("#")[0]
    if "\\" in after_scheme.partition("?")[0]:
        raise BadUrl("the address contains a backslash")
    if not after_scheme.startswith("//") or after_scheme[2:3] in ("", "/", "?"):
        raise BadUrl(f"the address is not written as {scheme}://host/path")
    authority = re.split(r"[/?]", after_scheme[2:], maxsplit=1)[0]
    if any(unicodedata.category(sign) == "Cf" for sign in authority):
        raise BadUrl("the host contains an invisible character")
    userinfo, at_sign, host_and_port = authority.rpartition("@")
    if not _USERINFO.fullmatch(userinfo):
        raise BadUrl("the part before @ contains characters that are not allowed there")
    host, port = _parse_host_and_port(host_and_port, _DEFAULT_PORTS[scheme])
    target = quote("/" + after_scheme[2 + len(authority) :].removeprefix("/"), safe=_UNENCODED)
    target = _ENCODED.sub(lambda found: f"%{ord(found[0]):02X}", target)
    return WebUrl(scheme=scheme, host=host, port=port, target=target, has_userinfo=bool(at_sign))


def join_url(base: WebUrl, reference: str) -> WebUrl:
    """Resolve the value of a `Location` header in the response of `base`. Raises `BadUrl`."""
    try:
        joined = urljoin(str(base), reference)
    except ValueError as error:
        raise BadUrl(str(error)) from error
    return parse_url(joined)


def urls_in(text: str) -> Iterable[str]:
    """Yield the web addresses in a text that a person wrote, without the punctuation that ends a sentence."""
    for found in re.findall(r"https?://[^\s<>\"'`]{1,4000}", text):
        url = found.rstrip(".,;:!?*_")
        # A closing bracket without an opening one belongs to the sentence.
        while url[-1] in _OPENING_BRACKETS and url.count(url[-1]) > url.count(_OPENING_BRACKETS[url[-1]]):
            url = url[:-1].rstrip(".,;:!?*_")
        yield url


@lru_cache(maxsize=1_000)
def host_of_rule(pattern: str) -> str | None:
    """Return the host of a rule `domain:example.org` or `domain:*.example.org`, in canonical form, or None."""
    if not pattern.startswith("domain:"):
        return None
    domain = pattern.removeprefix("domain:").strip().removeprefix("*.").rstrip(".")
    domain = f"[{domain}]" if domain.count(":") > 1 and not domain.startswith("[") else domain  # an IPv6 address
    after_brackets = domain.rpartition("]")[2]
    if re.search(r"[/?#@]|:\d*$", after_brackets) or "*" in domain:  # it has more than a host, such as a port
        return None
    try:
        return parse_url(f"https://{domain}/").host
    except BadUrl:
        return None


def _parse_host_and_port(text: str, default_port: int) -> tuple[str, int]:
    try:
        host, port = hosts.split_port(text.removesuffix(":"), default=default_port)
    except ValueError as error:
        raise BadUrl(f"{text[:80]!r} is not a host and a port") from error
    if text.startswith("[") != (":" in host):
        raise BadUrl(f"{text[:80]!r} is not a host: put brackets around an IPv6 address, and only there")
    if not host:
        raise BadUrl("the address has no host")
    # A host that ends in a number is an address (WHATWG URL), which `read_host` accepts only in its usual form.
    try:
        host = hosts.read_host(host.lower() if host.isascii() else _to_ascii(host))
    except ValueError as error:
        raise BadUrl(str(error).removesuffix(".")) from error
    if not all(_is_punycode(label) for label in host.split(".") if label.startswith("xn--")):
        raise BadUrl(f"{host} is not a host name")
    return host, port or default_port


def _to_ascii(host: str) -> str:
    """Return the ASCII form of an internationalized name (RFC 5891, with the mapping of Unicode TS 46)."""
    import idna  # imported here because it takes 3 ms and few addresses need it

    try:
        return idna.encode(host, uts46=True).decode()
    except UnicodeError as error:  # IDNAError is one
        raise BadUrl(f"{host[:80]!r} is not a host name") from error


def _is_punycode(label: str) -> bool:
    import idna

    try:
        return bool(idna.encode(idna.decode(label)).decode() == label)
    except UnicodeError:
        return False


class UrlVerdict(msgspec.Struct, frozen=True):
    verdict: Literal["block", "ask", "allow"]
    reason: str = ""  # why it is not fetched at once, in a form that fits after a colon


def judge_url(url: str, *, granted_hosts: Collection[str] = (), known_urls: Collection[str] = ()) -> UrlVerdict:
    """Judge an address, as the model wrote it, by its text. `why_unreachable` judges the addresses of its host.

    `granted_hosts` are the person's grants: `host`, `*.host`, `host:port` or `[v6]:port`; without a port they cover 80
    and 443. A grant also opens a name or an address of the local network, but never a cloud's metadata service.
    `known_urls` are addresses that the person typed or a search found, in any form that `parse_url` accepts.
    """
    try:
        parsed = parse_url(url)
    except BadUrl as error:
        return UrlVerdict("block", str(error))
    if blocked := why_blocked(parsed, granted_hosts):
        return UrlVerdict("block", blocked)
    if is_granted(parsed, granted_hosts) or _is_known(parsed, known_urls):
        return UrlVerdict("allow")
    question = _question_about(parsed)
    return UrlVerdict("ask" if question else "allow", question)


def is_granted(url: WebUrl, granted_hosts: Iterable[str]) -> bool:
    return any(_covers(grant, url.host, url.port) for grant in granted_hosts)


def why_blocked(url: WebUrl, granted_hosts: Collection[str]) -> str:
    """Return why an address must not be requested, judged by its text; empty if it may be."""
    granted = is_granted(url, granted_hosts)
    if url.port in hosts.read_addresses()["ports"]["of_other_services"] and not granted:
        return f"port {url.port} belongs to another service than the web"
    if (address := url.address) is not None:
        return why_unreachable(str(address), url, granted_hosts)
    if not granted and _is_local_name(url.host):
        return f"{url.host} is a name of this machine or its network"
    is_private = not granted and _is_in_domains(url.host, hosts.read_addresses()["names"]["of_private_addresses"])
    return f"{url.host} leads to a private address" if is_private else ""


def why_unreachable(address: str, url: WebUrl, granted_hosts: Collection[str]) -> str:
    """Return why a connection to `address`, to which the host of `url` leads, is refused; empty if it is allowed.

    A granted local name may lead to this machine or into the local network. A name that looks public may lead to a
    private address only if that address is granted as well, because its owner can point it anywhere at any time.
    """
    parsed = hosts.parse_address(address)
    if parsed is None:
        return f"{url.host} leads to {address}, which is not a plain address"
    kind = hosts.why_not_public(parsed)  # such as "a private address"; empty for a public one
    is_open = not kind or any(_covers(grant, str(parsed), url.port) for grant in granted_hosts)
    if not is_open and is_granted(url, granted_hosts) and _is_local_name(url.host):
        is_open = hosts.unwrapped(parsed).is_loopback if _is_this_machine(url.host) else hosts.is_local_network(parsed)
    if is_open and not hosts.is_metadata_service(parsed):
        return ""
    return f"{url.host} is {kind}" if url.host == address else f"{url.host} leads to {address}, {kind}"


def _question_about(url: WebUrl) -> str:
    """Return the reason to ask the person before a request; empty for an ordinary page of a known site."""
    is_long = len(url.target) > MAX_SILENT_TARGET_CHARS
    data = f", and the address carries {len(url.target):,} characters to it" if is_long else ""
    reasons = (
        (url.has_userinfo, f"the host is {url.host}; the part before the @ is not, and is not sent"),
        (url.address is not None, "a bare network address"),
        ("xn--" in url.host, f"{url.host} is a name in other letters, which may imitate another name"),
        (url.authority != url.host, f"port {url.port} of {url.host}"),
        (url.host not in _documentation_sites(), f"{url.host} is not one of the known documentation sites{data}"),
        (url.scheme != "https", "the connection is not encrypted"),
        (is_long, f"the address is long and may carry data to {url.host}"),
    )
    return next((reason for applies, reason in reasons if applies), "")


@cache
def _documentation_sites() -> frozenset[str]:
    return frozenset(host for group in read_table(__file__, "known_sites").values() for host in group)


def _is_known(url: WebUrl, known_urls: Collection[str]) -> bool:
    for known in known_urls:
        with suppress(BadUrl):
            parsed = parse_url(known)
            over_https = msgspec.structs.replace(parsed, scheme="https", port=443)
            if url == parsed or (parsed.port == 80 and url == over_https):  # HTTPS is safer than the known HTTP
                return True
    return False


def _covers(grant: str, host: str, port: int) -> bool:
    """Return True if a grant covers a port of a host; a grant that cannot be read covers nothing."""
    with suppress(ValueError):
        return hosts.read_grant(grant, allows_any_pattern=True).covers(host, port)
    return False


def _is_in_domains(host: str, domains: Collection[str]) -> bool:
    """Return True for one of the domains, and for a host below one."""
    labels = host.split(".")
    return any(".".join(labels[start:]) in domains for start in range(len(labels)))


def _is_this_machine(host: str) -> bool:
    return host in hosts.read_addresses()["names"]["of_this_machine"] or _is_in_domains(host, ("localhost",))


def _is_local_name(host: str) -> bool:
    local_domains = hosts.read_addresses()["names"]["local_domains"]
    return "." not in host or _is_this_machine(host) or _is_in_domains(host, local_domains)
