"""TLS to a model's server, directly and through proxies, against loopback servers with a certificate of their own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentcli.llm.errors import ConnectionFailed
from agentcli.llm.http import Carrier, HttpClient
from agentcli.llm.providers.anthropic import SdkClient, Service

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")

BODY = b'{"text": "' + b"x" * 300_000 + b'"}'
NAMES = "subjectAltName=DNS:model.test,IP:127.0.0.1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and the certificate for `model.test` and 127.0.0.1."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    new = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=model.test -addext".split()
    subprocess.run([*new, NAMES, "-keyout", file, "-out", f"{file}.cert"], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + Path(f"{file}.cert").read_bytes())
    return file


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Network:
    """A server over TLS, and a proxy that leads everything there."""

    def __init__(self, certificate: Path) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate)
        self.connections = 0
        self.tunnels: list[bytes] = []
        self.port = self.proxy_port = 0

    @asynccontextmanager
    async def serving(self, *, secure_proxy: bool = False) -> AsyncIterator[Network]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        proxy = await asyncio.start_server(self._tunnel, "127.0.0.1", 0, ssl=self.tls if secure_proxy else None)
        self.port, self.proxy_port = (each.sockets[0].getsockname()[1] for each in (server, proxy))
        try:
            yield self
        finally:
            server.close()
            proxy.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
                await writer.drain()
        except (EOFError, OSError):
            writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tunnels.append(await reader.readuntil(b"\r\n\r\n"))
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    async def socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A SOCKS5 proxy that adds a response of its own to its answer."""
        await reader.readexactly(3)
        writer.write(b"\x05\x00")
        await reader.readexactly(4 + 1 + len("model.test") + 2)
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"\x05\x00\x00\x01" + bytes(6) + b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"text": "no"}')
        await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


CARRIERS: dict[str, Callable[[str], Carrier]] = {
    "own": lambda url: HttpClient(url, {}, read_timeout=5),
    "sdk": lambda url: SdkClient(Service(platform="anthropic", base_url=url, api_key="key"), read_timeout=5),
}
carriers = pytest.mark.parametrize("carrier", CARRIERS)


async def asked(url: str, carrier: str = "own") -> None:
    """Two requests that are longer than any buffer, and their answers."""
    client = CARRIERS[carrier](url)
    try:
        for _ in range(2):
            assert len((await client.fetch_json("/x", {"text": "y" * 500_000}))["text"]) == 300_000
    finally:
        await client.aclose()


@carriers
async def test_a_certificate_that_is_trusted_serves_both_requests_on_one_connection(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with Network(certificate).serving() as network:
        await asked(f"https://127.0.0.1:{network.port}", carrier)
        assert network.connections == 1


@carriers
@pytest.mark.parametrize("proxied", [False, True])
async def test_a_certificate_that_nobody_trusts_is_refused_once_and_names_the_setting(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, carrier: str, proxied: bool
) -> None:
    async with Network(certificate).serving() as network:
        url = f"https://127.0.0.1:{network.port}"
        if proxied:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{network.proxy_port}")
            url = "https://model.test"
        with pytest.raises(ConnectionFailed, match=r"CERTIFICATE_VERIFY_FAILED.*set SSL_CERT_FILE") as failed:
            await asked(url, carrier)
        assert not failed.value.is_retryable


@carriers
async def test_certificates_that_cannot_be_read_are_reported_once_with_their_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, carrier: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("none\n")
    for value in (tmp_path / "gone", empty):
        with monkeypatch.context() as setting:
            setting.setenv("SSL_CERT_FILE", str(value))
            with pytest.raises(ConnectionFailed, match=f"SSL_CERT_FILE is {value}, which cannot be used") as failed:
                await asked("https://127.0.0.1:9", carrier)
            assert not failed.value.is_retryable


async def test_ssl_cert_file_counts_also_where_the_system_s_certificates_cannot_be_read(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unreadable = SimpleNamespace(cafile=None, capath=str(tmp_path / "gone"))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: unreadable)
    trusted = tmp_path / "trusted.pem"  # the contexts of other files may have been made before
    trusted.write_bytes(certificate.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    async with Network(certificate).serving() as network:
        await asked(f"https://127.0.0.1:{network.port}")


@carriers
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_s_tunnel_carries_tls_to_the_server(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, carrier: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with Network(certificate).serving(secure_proxy=scheme == "https") as network:
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:pw@127.0.0.1:{network.proxy_port}")
        await asked("https://model.test", carrier)
        (tunnel,) = network.tunnels
        assert tunnel.startswith(b"CONNECT model.test:443 HTTP/1.1\r\n")
        assert b"proxy-authorization: basic bwu6chc=\r\n" in tunnel.lower()
        with pytest.raises(ConnectionFailed, match="Hostname mismatch"):
            await asked("https://other.test", carrier)


async def test_a_proxy_cannot_answer_in_the_place_of_the_server(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with (
        Network(certificate).serving() as network,
        await asyncio.start_server(network.socks, "127.0.0.1", 0) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"socks5://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionFailed, match="the proxy answered in the place of the server"):
            await asked("https://model.test")


@carriers
async def test_no_proxy_names_hosts_that_are_reached_directly(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    async with Network(certificate).serving() as network:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{network.proxy_port}")
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.test")
        with pytest.raises(ConnectionFailed, match=r"Could not connect to https://model\.test"):
            await asked("https://model.test", carrier)
        assert network.tunnels == []
