"""Which addresses are fetched at once, only when the person agrees, or never."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.safety.hosts import why_not_public
from agentcli.safety.urls import (
    MAX_SILENT_TARGET_CHARS,
    BadUrl,
    join_url,
    judge_url,
    parse_url,
    urls_in,
    why_unreachable,
)
from tests.rows import each_row

SHARED = Path(__file__).parents[3].parent / "shared/data/urls.jsonl"

BLOCKED = """
http://localhost/ http://LOCALHOST/ http://a.localhost/ http://localhost./ http://localhost.localdomain:80/
http://ip6-localhost/ http://router/ http://nas.local/ http://x.home.arpa/ http://git.corp/ http://db.internal:8080/
http://metadata.google.internal./computeMetadata/v1/ http://host.docker.internal/ http://x.svc.cluster.local/
http://127.1/ http://2130706433/ http://017700000001/ http://0x7f.1/ http://127.0.0.1.nip.io/ http://0/
http://0x/ http://1.2.3.4.5/ http://1.2.3.4./ http://01.2.3.4/ http://134744072/ http://foo.0x1/ http://1..2/
http://10.0.0.1/ http://172.16.0.1/ http://192.168.1.1:8080/ http://169.254.170.2/ http://168.63.129.16/
http://198.51.100.7/ http://203.0.113.9/ http://240.0.0.1/ http://239.255.255.250/ http://[::1]:80/ http://[::]/
http://[0:0:0:0:0:ffff:127.0.0.1]/ http://[::ffff:0:7f00:1]/ http://[64:ff9b::10.0.0.1]/ http://[64:ff9b:1::1]/
http://[2002:a00:1::]/ http://[2001::1]/ http://[2001:db8::1]/ http://[3fff::1]/ http://[fe80::1]/
http://[fe80::1%25eth0]/ http://[fec0::1]/ http://[fd20:ce::254]/ http://[ff02::1]/ http://[5f00::1]/
http://[2600:1f18::5efe:10.0.0.1]/ http://[v1.x]/ http://[::1 http://[127.0.0.1]/ http://[::1]x/
http://%31%32%37.0.0.1/ http://127.0.0.1%00.example.com/ http://example.com%2f@127.0.0.1/ http://a@b@127.0.0.1/
http://a%2fb@example.com/ http://example.com\\@127.0.0.1/ http://example.com\\.evil.test/ http:\\\\example.com/
http:/example.com/ http:example.com https:///example.com/ //example.com/ example.com /etc/passwd ftp://example.com/
file:///etc/passwd ws://example.com/ data:text/plain,x javascript:alert(1) blob:https://example.com/1 HTTP+UNIX://x/
http:// http://@/ http://:@/ http://user@/ http://:80/ http://example.com:0/ http://example.com:65536/
http://example.com:-1/ http://example.com:80x/ http://example.com:８０/ http://example.com:80:80/ http://example.com:22/
https://example.com:6379x/ https://example.com:6667/ http://-a.example/ http://a-.example/ http://a..example/
http://exa+mple.com/ http://exa{mple.com/ http://xn--a/ http://xn--0.example/ http://☃.example/ http://a\u200bb.example/
http://①②⑦.⓪.⓪.①/ http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/ http://x.onion/ http://1.0.0.127.in-addr.arpa/ http://foo.localtest.me/
""".split()

ASKED = """
https://example.com/ https://evil.test/collect?d=aGVsbG8 https://docs.python.org.evil.test/ https://docs.python.org@evil.test/
https://user:password@docs.python.org/ https://docs.python.org:8443/ http://docs.python.org/3/ https://x.docs.python.org/
https://docspython.org/ https://8.8.8.8/ https://[2606:4700::1111]/ https://[::ffff:8.8.8.8]/ https://[64:ff9b::808:808]/
https://раураl.com/ https://xn--80ak6aa92e.com/ https://gist.githubusercontent.com/a/b/raw/c https://requestbin.net/r/x
https://bit.ly/x https://attacker.readthedocs.io/ https://attacker.github.io/ https://example.com:8080/ https://a_b.example/
""".split()

ALLOWED = """
https://docs.python.org/3/library/asyncio.html https://docs.python.org https://DOCS.python.org./3/
https://docs.python.org:443/3/?q=http://127.0.0.1#x https://developer.mozilla.org/en-US/docs/Web/HTTP
https://docs.python.org/3/library/中.html https://pypi.org/project/httpx/ https://docs.rs/serde/latest/serde/
https://en.wikipedia.org/wiki/Python_(programming_language) https://learn.microsoft.com/en-us/
""".split()


@each_row("url", [*BLOCKED, "", " https://docs.python.org/", "https://docs.python.org/\n", "http://a\tb/"])
def test_what_no_agreement_opens_is_blocked(url: str) -> None:
    verdict = judge_url(url, known_urls=[url])
    assert verdict.verdict == "block", verdict
    assert verdict.reason


@each_row("url", [*ASKED, f"https://docs.python.org/{'a' * MAX_SILENT_TARGET_CHARS}"])
def test_commands_that_may_send_something_are_asked_about(url: str) -> None:
    verdict = judge_url(url)
    assert verdict.verdict == "ask", verdict
    assert verdict.reason


@pytest.mark.parametrize("url", ALLOWED)
def test_known_documentation_is_read_without_asking(url: str) -> None:
    assert judge_url(url).verdict == "allow"


@each_row("url", ASKED)
def test_an_address_the_person_typed_needs_no_question(url: str) -> None:
    assert judge_url(url, known_urls=[url]).verdict == "allow"
    assert judge_url(f"{url}&more=secret", known_urls=[url]).verdict == "ask"


def test_a_typed_address_may_be_fetched_encrypted_and_not_the_other_way_round() -> None:
    assert judge_url("https://example.com/a", known_urls=["http://example.com/a"]).verdict == "allow"
    assert judge_url("http://example.com/a", known_urls=["https://example.com/a"]).verdict == "ask"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "fe80::1%2", "64:ff9b::7f00:1", "::ffff:c0a8:1"])
@pytest.mark.parametrize(("url", "before"), [("https://example.com/", "ask"), ("https://docs.python.org/", "allow")])
def test_a_name_that_leads_to_a_private_address_is_blocked_once_that_is_known(
    url: str, before: str, address: str
) -> None:
    assert judge_url(url).verdict == before
    assert why_unreachable(address, parse_url(url), ())
    assert not why_unreachable("93.184.215.14", parse_url(url), ())


@each_row(
    "grant, url, verdict",
    [
        ("example.com", "https://example.com/any?thing", "allow"),
        ("example.com", "http://example.com/", "allow"),
        ("example.com", "https://example.com:8080/", "ask"),
        ("example.com:8080", "https://example.com:8080/", "allow"),
        ("example.com:8080", "https://example.com/", "ask"),
        ("example.com:22", "http://example.com:22/", "allow"),
        ("example.com", "https://www.example.com/", "ask"),
        ("*.example.com", "https://www.example.com/", "allow"),
        ("*.example.com", "https://example.com/", "ask"),
        ("*.example.com", "https://evilexample.com/", "ask"),
        ("example.com", "https://example.com.evil.test/", "ask"),
        ("localhost:3000", "http://localhost:3000/x", "allow"),
        ("localhost:3000", "http://localhost:3001/", "block"),
        ("localhost", "http://localhost:2375/", "block"),
        ("127.0.0.1:3000", "http://127.0.0.1:3000/", "allow"),
        ("127.0.0.1:3000", "http://2130706433:3000/", "block"),
        ("[::1]:3000", "http://[::1]:3000/", "allow"),
        ("::1", "http://[::1]/", "allow"),
        ("192.168.1.10", "http://192.168.1.10/", "allow"),
        ("169.254.169.254", "http://169.254.169.254/", "block"),
        ("fd00:ec2::254", "http://[fd00:ec2::254]/", "block"),
        ("", "https://example.com/", "ask"),
        ("*.", "https://example.com/", "ask"),
        (":80", "http://example.com/", "ask"),
    ],
)
def test_a_grant_covers_one_host_and_port(grant: str, url: str, verdict: str) -> None:
    assert judge_url(url, granted_hosts=[grant]).verdict == verdict


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/?q#f", "https://example.com/?q"),
        ("http://example.com:8080/a b/%7e/ü?x=[1]&y=\\", "http://example.com:8080/a%20b/%7e/%C3%BC?x=[1]&y=%5C"),
        ("https://example.com?q=1", "https://example.com/?q=1"),
        ("https://bücher.example/100%", "https://xn--bcher-kva.example/100%25"),
        ("https://u:p@example.com/", "https://example.com/"),
        ("http://[2606:4700:0:0::1111]:80/", "http://[2606:4700::1111]/"),
    ],
)
def test_an_address_has_one_form(written: str, read: str) -> None:
    assert str(parse_url(written)) == read
    assert str(parse_url(read)) == read


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://docs.python.org", "http://127.0.0.1"]))
def test_any_text_is_an_address_or_refused_and_reads_the_same_twice(text: str, start: str) -> None:
    try:
        url = parse_url(start + text)
    except BadUrl:
        return
    assert str(parse_url(str(url))) == str(url)
    assert str(url).isascii()
    assert " " not in str(url)


@given(st.ip_addresses())
def test_no_address_python_calls_private_is_public_here(address: Any) -> None:
    if not address.is_global and address not in ip_network("64:ff9b::/96"):
        assert why_not_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700::1111", "2a00:1450:4001::1"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert why_not_public(ip_address(address)) == ""


@pytest.mark.parametrize(
    ("reference", "result"),
    [
        ("/b?c", "https://site.example/b?c"),
        ("b", "https://site.example/dir/b"),
        ("//other.example/x", "https://other.example/x"),
        ("?q=ü", "https://site.example/dir/a?q=%C3%BC"),
        ("", "https://site.example/dir/a"),
    ],
)
def test_a_relative_address_is_read_on_its_page(reference: str, result: str) -> None:
    assert str(join_url(parse_url("https://site.example/dir/a"), reference)) == result


@pytest.mark.parametrize("reference", ["/\\evil.test/", "\\\\evil.test", "//[::1", "https://a b/", "mailto:a@b.c"])
def test_a_bad_relative_address_is_refused(reference: str) -> None:
    with pytest.raises(BadUrl):
        join_url(parse_url("https://site.example/dir/a"), reference)


def test_addresses_are_found_in_what_a_person_writes() -> None:
    text = (
        "Read https://a.example/x, (https://b.example/y_(z)) and <https://c.example/?q=1>; not ftp://d.example.\n"
        "See **http://e.example/f**!"
    )
    assert list(urls_in(text)) == [
        "https://a.example/x",
        "https://b.example/y_(z)",
        "https://c.example/?q=1",
        "http://e.example/f",
    ]


@pytest.mark.skipif(not SHARED.exists(), reason="the shared rows lie outside the project")
def test_the_shared_addresses_get_the_expected_verdicts() -> None:
    rows = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    assert len(rows) > 50
    verdicts = [(row["input"], judge_url(row["input"]).verdict) for row in rows]
    assert verdicts == [(row["input"], row["expected"]) for row in rows]
