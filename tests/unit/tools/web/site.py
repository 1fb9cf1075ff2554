"""A web site on loopback that sends exactly the bytes it is told to, and names that lead to it."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentcli.errors import ToolError
from agentcli.tools.workspace import Web, WebPage

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
HERE = "127.0.0.1"


def reply(
    body: bytes | str = b"", content_type: str = "text/plain; charset=utf-8", status: str = "200 OK", **headers: str
) -> bytes:
    """A whole response; `headers` with underscores for hyphens."""
    body = body.encode() if isinstance(body, str) else body
    named = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    if content_type:
        named["content-type"] = content_type
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def page(body: str, **headers: str) -> bytes:
    return reply(body, "text/html; charset=utf-8", **headers)


def gzipped(body: bytes, content_type: str = "text/plain") -> bytes:
    return reply(gzip.compress(body), content_type, content_encoding="gzip")


def redirect(location: str, status: str = "302 Found") -> bytes:
    return reply(b"", "", status, location=location)


@dataclass
class Names:
    """A resolver whose answers are given; a name with several answers gives the next one each time it is asked."""

    answers: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.answers.get(host, [[HERE]])
        return answers[min(self.asked.count(host), len(answers)) - 1]


@dataclass
class Site:
    port: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def url(self, path: str = "/", *, host: str = "site.example", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def site(
    answers: Mapping[str, Answer], *, host: str = HERE, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """Answers a request for a path with what is given for it, and closes the connection."""
    served = Site()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split()[1]
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            served.requests.append((path, headers))
            answer = answers.get(path, reply("nothing here", status="404 Not Found"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()


def web_of(site: Site, names: Names | None = None, *, granted: Sequence[str] = (), **options: Any) -> Web:
    """A session's web in which the site's address and port stand for the public internet."""
    granted_hosts = [f"{HERE}:{site.port}", *granted]
    return Web(**{"granted_hosts": granted_hosts, "resolve": names or Names(), "total_s": 5} | options)


async def fetched(answer: Answer, *, max_chars: int = 100_000, **options: Any) -> WebPage:
    """What a fetch of a page with this answer gives."""
    async with site({"/": answer}) as served:
        return await web_of(served, **options).fetch(served.url(), max_chars=max_chars)


async def refusal(answer: Answer, **options: Any) -> ToolError:
    """The error of a fetch that must fail."""
    with pytest.raises(ToolError) as caught:
        await fetched(answer, **options)
    return caught.value
