"""Carries the control protocol: requests that wait for their responses, in both directions."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from agentcli.errors import UserError
from agentcli.frontends.json_input import json_in


class ClientError(UserError):
    """The program has answered a request with an error, or not with an object, or cannot answer any more."""


class ClientGone(ClientError):
    """The program cannot answer any more."""

    def __init__(self) -> None:
        super().__init__("The program that started agentcli has ended its input, so it cannot answer.")


class ControlChannel:
    """Asks the program at the other end, and answers its requests; `write` sends an object."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self.write = write
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}  # for responses, by the ids of their requests
        self._numbers = count(1)
        self._is_closed = False

    async def ask(self, subtype: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the response; if it is cancelled, the program is told so. Raises `ClientError`."""
        if self._is_closed:
            raise ClientGone
        response: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        id = self.post(subtype, **fields)
        self._waiting[id] = response
        try:
            return await response
        except asyncio.CancelledError:
            self.write({"type": "control_cancel_request", "request_id": id})
            raise
        finally:
            del self._waiting[id]

    def post(self, subtype: str, **fields: Any) -> str:
        """Send a request whose response does not matter; return its id."""
        id = f"agentcli-{next(self._numbers)}"
        self.write({"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}})
        return id

    def deliver(self, response: Mapping[str, Any]) -> None:
        """Deliver a response to the request that waits for it."""
        waiting = self._waiting.get(str(response.get("request_id")))
        if waiting is None or waiting.done():
            return
        if response.get("subtype") == "success":
            answer = {} if response.get("response") is None else response["response"]
            if isinstance(answer, dict):
                waiting.set_result(answer)
            else:
                waiting.set_exception(ClientError(f"The answer is not an object: {answer!r:.200}"))
        else:
            waiting.set_exception(ClientError(str(response.get("error") or "The program gave no reason.")))

    def respond(self, id: str, **answer: Any) -> None:
        response = {"subtype": "success", "request_id": id, "response": answer}
        self.write({"type": "control_response", "response": response})

    def refuse(self, id: str, error: str) -> None:
        self.write({"type": "control_response", "response": {"subtype": "error", "request_id": id, "error": error}})

    def close(self) -> None:
        """End the waiting for responses: the program sends no more of them."""
        self._is_closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientGone())


def control_request(raw: bytes | None) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the content of a control request; None for any other line."""
    with suppress(ValueError, RecursionError):
        match json_in(raw or b""):
            case {"type": "control_request", "request_id": str(id), "request": {"subtype": str()} as request}:
                return id, request
    return None
