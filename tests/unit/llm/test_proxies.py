"""Which proxy leads to a server, as the environment says."""

from __future__ import annotations

import pytest

from agentcli.errors import ConfigError
from agentcli.llm.addresses import proxy_for
from agentcli.llm.errors import BadRequest, ProviderError
from agentcli.llm.http import HttpClient
from tests.conformance.servers import chat_server, json_reply

THERE = "http://model.example:8000/v1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def chosen(monkeypatch: pytest.MonkeyPatch, address: str = THERE, **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(address)
    return "" if proxy is None else proxy.url


def test_the_proxy_of_the_scheme_goes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch) == ""
    assert chosen(monkeypatch, ALL_PROXY="socks5://a:1") == "socks5://a:1"
    assert chosen(monkeypatch, HTTP_PROXY="b:2", HTTPS_PROXY="https://c") == "http://b:2"
    assert chosen(monkeypatch, "https://model.example/v1") == "https://c"
    assert chosen(monkeypatch, http_proxy=" d:3 ") == "http://d:3"


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1", "http://localhost", "https://127.3.2.1", "http://[::1]:1/v1"]
)
def test_this_machine_needs_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert chosen(monkeypatch, address, ALL_PROXY="ftp://broken") == ""


def test_desktops_write_socks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, ALL_PROXY="socks://a:1/").startswith("socks5://a:1")
    assert chosen(monkeypatch, ALL_PROXY="SOCKS5H://me:x@a:1") == "socks5h://a:1"


@pytest.mark.parametrize(
    "value",
    [
        *"http:// http://[half http://host:port http://host:99999 http://host:0 ftp://host:1 socks4://host:1 "
        "htp://host http:/host :// :8080 http://me:hidden@ http://%20".split(),
        "http://a b",
    ],
)
def test_an_invalid_proxy_address_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(ConfigError, match="ALL_PROXY: no usable") as failed:
        chosen(monkeypatch, ALL_PROXY=value)
    assert "hidden" not in str(failed.value)


@pytest.mark.parametrize(
    "value",
    [
        *"* a,* model.example .example *.example example Model.Example. other,model.example http://model.example "
        "model.example:8000".split(),
        "a b, model.example ,c",
    ],
)
def test_no_proxy_excepts_a_host_and_the_domains_above_it(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert chosen(monkeypatch, ALL_PROXY="http://a", NO_PROXY=value) == ""


@pytest.mark.parametrize(
    "value", ["", ",", "odel.example", "model.example.org", "model.example:80", "[::1],[bad,10.0.0.0/8,//,.,:", "a*"]
)
def test_no_proxy_excepts_nothing_else(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert chosen(monkeypatch, ALL_PROXY="http://a", NO_PROXY=value) == "http://a"


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("http://10.1.2.3/v1", "10.1.2.3"),
        ("http://10.1.2.3:80/v1", "10.1.2.3:80"),
        ("https://[fe80::1]/v1", "[fe80::1]"),
        ("https://[fe80::1]/v1", "[fe80::1]:443"),
    ],
)
def test_no_proxy_excepts_addresses(monkeypatch: pytest.MonkeyPatch, address: str, value: str) -> None:
    assert chosen(monkeypatch, address, ALL_PROXY="http://a", NO_PROXY=value) == ""


async def test_a_name_in_another_script_is_asked_for_as_dns_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server() as server:
        server._routes["GET http://xn--bcher-kva.example/v1/models"] = json_reply({"here": True})
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        client = HttpClient("http://Bücher.example:80/v1", {})
        assert await client.fetch_json("/models") == {"here": True}
        assert server.others[0].headers["host"] == "xn--bcher-kva.example"
        await client.aclose()


@pytest.mark.parametrize(
    "address", [f"http://{'ü' * 70}.example", f"http://{'a' * 70}.example", "http://a b/v1", "http://127.0.0.1:9/\x00"]
)
async def test_an_address_that_cannot_be_is_a_bad_request(address: str) -> None:
    client = HttpClient(address, {})
    with pytest.raises(BadRequest, match="is not an http"):
        await client.fetch_json("/x", {})
    await client.aclose()


async def test_a_header_that_none_can_be_is_an_error_of_the_provider() -> None:
    with chat_server() as server:
        for headers in ({"x": "a\tb"}, {"content-length": "many"}):
            client = HttpClient(server.url, headers)
            with pytest.raises(ProviderError) as failed:
                await client.fetch_json("/models")
            assert not failed.value.is_retryable
            await client.aclose()
