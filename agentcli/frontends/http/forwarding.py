"""Hands requests to the server process that has the session open."""

from __future__ import annotations

import httpx2
from starlette.requests import Request
from starlette.responses import Response

from agentcli.frontends.http.failures import Refused

FORWARDED = "x-agentcli-forwarded"
_TIMEOUT = httpx2.Timeout(30.0, connect=2.0)


class Forwarding:
    """Speaks to other processes at addresses such as `unix:/run/a.sock` and `http://10.0.0.5:8001`."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx2.AsyncClient] = {}

    async def forward(
        self, request: Request, address: str, body: bytes, *, is_repeatable: bool = False
    ) -> Response | None:
        """The other process's answer; None where it was not asked, so that the request may be tried again.

        So may one that `is_repeatable` when the answer did not come; raises `Refused` for others. A request is
        forwarded once: where two processes each take the other for the owner, one of them learns better.
        """
        if FORWARDED in request.headers:
            return None
        headers = {"authorization": request.headers["authorization"], FORWARDED: "1", "host": "localhost"}
        path = request.url.path
        try:
            answer = await self._client(address).request(request.method, path, content=body, headers=headers)
        except httpx2.ConnectError:
            return None
        except httpx2.HTTPError as error:
            if is_repeatable:
                return None
            raise Refused(
                503, "unknown_outcome", "The server that has the session open ended: look what is done."
            ) from error
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    def _client(self, address: str) -> httpx2.AsyncClient:
        if address not in self._clients:
            kind, _, path = address.partition(":")
            transport = httpx2.AsyncHTTPTransport(uds=path) if kind == "unix" else httpx2.AsyncHTTPTransport()
            base = "http://localhost" if kind == "unix" else address
            self._clients[address] = httpx2.AsyncClient(
                transport=transport, base_url=base, timeout=_TIMEOUT, trust_env=False
            )
        return self._clients[address]

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
