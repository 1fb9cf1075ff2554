"""The way to granted hosts: who is let through, where a name may lead, and what a command in a sandbox sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Bounds, CommandResources
from agentcli.infra.sandbox.network.proxy import NetworkProxy
from agentcli.safety.hosts import find_grant, may_lead_to, read_grant, read_host, split_port
from tests.conformance.confining import confinement_for, folder_on_disk, python_of, run
from tests.rows import each_row

# --- grants


@each_row(
    "grant, host, port, expected",
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("Example.ORG.", "example.org", 443, True),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("example.org:8080", "example.org", 8080, True),
        ("example.org:8080", "example.org", 443, False),
        ("127.0.0.1:3000", "127.0.0.1", 3000, True),
        ("[::1]:3000", "::1", 3000, True),
        ("::1", "::1", 443, True),
        ("localhost:3000", "localhost", 3000, True),
    ],
)
def test_what_a_grant_covers(grant: str, host: str, port: int, expected: bool) -> None:
    assert (find_grant([read_grant(grant)], host, port) is not None) is expected


@each_row(
    "text",
    ["*", "*.org", "*.127.0.0.1", "a*.example.org", "exa mple.org", "", "example.org:0", "example.org:99999", "-a.org",
     "a..org", "http://example.org", "example.org/path", "user@example.org", "exämple.org", "127.1", "0x7f000001",
     "2130706433", "example.org\0.evil.net", "a" * 64 + ".org", "[::1", "example.org:８０"],
)  # fmt: skip
def test_entries_that_are_not_grants_are_ignored(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_grant(text)


@each_row(
    "grant, address, expected",
    [
        ("example.org", "93.184.215.14", True),
        ("example.org", "2606:2800:21f::1", True),
        ("example.org", "127.0.0.1", False),
        ("example.org", "::1", False),
        ("example.org", "0.0.0.0", False),
        ("example.org", "169.254.169.254", False),
        ("example.org", "168.63.129.16", False),  # what Azure tells its machines, at an address like any other
        ("example.org", "fd00:ec2::254", False),
        ("example.org", "100.100.100.200", False),
        ("example.org", "fe80::1%eth0", False),
        ("example.org", "::ffff:127.0.0.1", False),
        ("example.org", "::ffff:169.254.169.254", False),
        ("example.org", "64:ff9b::7f00:1", False),
        ("example.org", "2002:7f00:1::", False),
        ("example.org", "224.0.0.1", False),
        ("example.org", "255.255.255.255", False),
        ("git.company.example", "10.1.2.3", True),  # granted as it is: a company's own server
        ("*.company.example", "10.1.2.3", False),
        ("*.company.example", "93.184.215.14", True),
        ("localhost", "127.0.0.1", True),
        ("localhost", "10.0.0.1", False),
        ("localhost", "93.184.215.14", False),
        ("169.254.169.254", "169.254.169.254", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("example.org", "not an address", False),
    ],
)
def test_where_a_granted_name_may_lead(grant: str, address: str, expected: bool) -> None:
    assert may_lead_to(read_grant(grant), address) is expected


def test_hosts_and_ports_are_distinguished() -> None:
    assert split_port("example.org:8080", default=80) == ("example.org", 8080)
    assert split_port("[::1]:8080", default=80) == ("::1", 8080)
    assert split_port("::1", default=80) == ("::1", 80)
    assert read_host("EXAMPLE.org.") == "example.org"


# --- the proxy


@contextlib.asynccontextmanager
async def server(
    answer: bytes = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """On loopback: its port and the heads that came."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1], heads


@contextlib.asynccontextmanager
async def proxy(*grants: str, **more: object) -> AsyncIterator[NetworkProxy]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has to be short
        one = NetworkProxy([*map(read_grant, grants)], folder=Path(folder), **more)
        await one.start()
        try:
            yield one
        finally:
            await one.aclose()


async def ask(one: NetworkProxy, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(one.socket)
    writer.write(request)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


def leading_to(*addresses: str) -> Callable[[str, int], object]:
    """A resolver that is asked once: a second look-up could give another answer."""
    left = [list(addresses)]

    async def resolve(host: str, port: int) -> list[str]:
        if not addresses:
            raise OSError(-2, "Name or service not known")
        return left.pop()

    return resolve


HEADS = "Host: evil.net\r\nProxy-Authorization: x\r\nAccept: */*\r\nConnection: keep-alive"
PASSED = "GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\nAccept: */*\r\n\r\n"
GET = "GET / HTTP/1.1\r\n\r\n"
NOT_GRANTED = "403 agentcli: host example.org is not granted"


@pytest.mark.parametrize(
    ("grant", "request_text", "answered", "passed", "addresses"),
    [
        ("127.0.0.1:PORT", f"CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n{GET}", "200 Connection established", GET, None),
        # What is for the proxy alone is not passed on.
        ("127.0.0.1:PORT", f"GET http://127.0.0.1:PORT/a?b=c HTTP/1.1\r\n{HEADS}\r\n\r\n", "200 OK", PASSED, None),
        ("localhost:PORT", f"CONNECT localhost:PORT HTTP/1.1\r\n\r\n{GET}", "200 ", GET, ("127.0.0.1",)),
        ("example.net", "CONNECT example.org:443 HTTP/1.1\r\nHost: example.net\r\n\r\n", NOT_GRANTED, "", None),
        ("example.net", "GET http://example.org/ HTTP/1.1\r\nHost: example.net\r\n\r\n", NOT_GRANTED, "", None),
        # A granted name that leads to this machine.
        ("a.example:PORT", "CONNECT a.example:PORT HTTP/1.1\r\n\r\n",
         "403 agentcli: a.example leads to 127.0.0.1:PORT, an address that is not public and must be granted itself",
         "", ("93.184.215.14", "127.0.0.1")),
        ("a.example:PORT 127.0.0.1:PORT", f"CONNECT a.example:PORT HTTP/1.1\r\n\r\n{GET}", "200 ", GET, ("127.0.0.1",)),
        ("a.example:PORT 127.0.0.1:1", "CONNECT a.example:PORT HTTP/1.1\r\n\r\n", "403 ", "", ("127.0.0.1",)),
        ("example.org", "CONNECT example.org:443 HTTP/1.1\r\n\r\n",
         "502 agentcli: example.org cannot be reached: Name or service not known", "", ()),
        *(
            ("127.0.0.1:PORT", f"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 1\r\n{second}\r\n\r\n",
             "400 agentcli: two lengths", "", None)
            for second in ("Transfer-Encoding: chunked", "Content-Length: 2")
        ),
        # A head without an end is cut off.
        ("example.org", "GET http://example.org/ HTTP/1.1\r\nX: " + "x" * 100_000, "400 ", "", None),
        # Refused before anything is looked up.
        *(
            ("example.org", f"{line}\r\n\r\n", "400 ", "", ())
            for line in ("CONNECT example.org HTTP/1.1", "CONNECT example.org\0.net:443 HTTP/1.1", "GET / HTTP/1.1",
                         "CONNECT 0x7f000001:443 HTTP/1.1", "GET https://example.org/ HTTP/1.1", "nonsense",
                         "GET http://a@example.org/ HTTP/1.1", "CONNECT example.org:443 HTTP/1.1\r\n folded: x")
        ),
    ],
)  # fmt: skip
async def test_a_request_is_answered(
    grant: str, request_text: str, answered: str, passed: str, addresses: tuple[str, ...] | None
) -> None:
    more = {} if addresses is None else {"resolve": leading_to(*addresses)}
    async with (
        server() as (port, heads),
        proxy(*grant.replace("PORT", str(port)).split(), how_to_grant="Say NAME.", **more) as one,
    ):
        answer = await ask(one, request_text.replace("PORT", str(port)).encode())
    assert answer.startswith(f"HTTP/1.1 {answered}".replace("PORT", str(port)).encode())
    assert not passed or answer.endswith(b"hello")
    assert answered != NOT_GRANTED or answer.endswith(f"{NOT_GRANTED[4:]}. Say example.org.\n".encode())
    assert heads == [passed.replace("PORT", str(port)).encode()] * bool(passed)


async def test_the_socket_is_the_persons_alone_and_goes_with_the_proxy() -> None:
    async with proxy() as one:
        assert one.socket.stat().st_mode & 0o777 == 0o600
    assert not one.socket.exists()


# --- from a sandbox


@pytest.mark.parametrize("variant", ["bubblewrap, root", "bubblewrap, root in a user namespace", "bubblewrap, user"])
async def test_a_confined_command_reaches_granted_hosts_and_no_others(variant: str) -> None:
    confinement, uid = confinement_for(variant)
    if uid != os.getuid():
        pytest.skip("the socket is another user's")
    with folder_on_disk() as base:
        ws = base / "ws"
        ws.mkdir()
        async with server() as (port, heads), proxy(f"127.0.0.1:{port}") as one:
            bounds = Bounds(
                profile="workspace-write", roots=(ws,), home=base, resources=CommandResources(proxy_socket=one.socket)
            )
            argv = [str(python_of(uid)), "-c", _FETCHING, f"http://127.0.0.1:{port}/", "http://example.org/"]
            environment = {"NO_PROXY": "", "no_proxy": ""}  # the server stands for one that is far away
            done = await asyncio.to_thread(run, confinement, bounds, argv, environment=environment)
    assert done.stdout.splitlines() == [
        "hello",
        "403 agentcli: host example.org is not granted. The person can grant it.",
    ]
    assert len(heads) == 1


_FETCHING = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=5).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.reason)
"""


async def test_the_relay_leaves_a_command_as_it_would_be_without() -> None:
    confinement, _ = confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")
    with folder_on_disk() as base:
        ws = base / "ws"
        ws.mkdir()
        async with proxy("example.org") as one:
            script = "ls /proc/self/fd | wc -l; env | grep LC_ | sort; trap; kill -PIPE $$; echo ignored"
            plain = await asyncio.to_thread(
                run, confinement, Bounds(profile="workspace-write", roots=(ws,), home=base), script
            )
            bounds = Bounds(
                profile="workspace-write", roots=(ws,), home=base, resources=CommandResources(proxy_socket=one.socket)
            )
            through = await asyncio.to_thread(run, confinement, bounds, script)
            missing = await asyncio.to_thread(run, confinement, bounds, ["/nowhere/program"])
            curl = await asyncio.to_thread(run, confinement, bounds, "echo $HTTPS_PROXY $https_proxy $NO_PROXY")
    assert (through.stdout, through.returncode) == (plain.stdout, plain.returncode)
    assert (missing.returncode, missing.stderr) == (127, "/nowhere/program: No such file or directory\n")
    assert curl.stdout == "http://127.0.0.1:3128 http://127.0.0.1:3128 localhost,127.0.0.1,::1\n"
