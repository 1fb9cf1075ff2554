"""Represents the client: its capabilities, and the requests and updates sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from agentcli.frontends.acp.messages import ClientCapabilities, Filled, Message, Permission
from agentcli.frontends.acp.rpc import INTERNAL_ERROR, Connection, RpcError

T = TypeVar("T", bound=Message)


class Option(Struct, frozen=True):
    """An answer to a permission request; `kind` is allow_once, allow_always, reject_once or reject_always."""

    id: str
    name: str
    kind: str


class Client:
    """`can` is known once the client has introduced itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.can = ClientCapabilities()

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        self.connection.notify("session/update", {"sessionId": session_id, "update": update})

    async def request(self, method: str, answer: type[T], **params: Any) -> T:
        """Raises `RpcError`, also for an answer that makes no sense."""
        given = await self.connection.request(method, params)
        try:
            return msgspec.convert(given, answer)
        except msgspec.ValidationError as error:
            raise RpcError(INTERNAL_ERROR, f"The client's answer to {method} makes no sense: {error}") from error

    async def choose(self, session_id: str, call: dict[str, Any], options: Sequence[Option]) -> str | None:
        """Ask for permission; returns the id of the option, None if the turn was cancelled. Raises `RpcError`."""
        asked = [{"optionId": option.id, "name": option.name, "kind": option.kind} for option in options]
        method = "session/request_permission"
        outcome = (await self.request(method, Permission, sessionId=session_id, toolCall=call, options=asked)).outcome
        return outcome.option_id if outcome.outcome == "selected" else None

    async def fill_in(
        self, session_id: str, message: str, fields: dict[str, Any], *, required: Sequence[str] = (), call_id: str = ""
    ) -> dict[str, Any] | None:
        """Show a form; returns its values, None if the person did not fill it in. Raises `RpcError`."""
        params: dict[str, Any] = {"sessionId": session_id, "mode": "form", "message": message}
        if call_id:
            params["toolCallId"] = call_id
        params["requestedSchema"] = {"type": "object", "properties": fields, "required": list(required)}
        filled = await self.request("elicitation/create", Filled, **params)
        return (filled.content or {}) if filled.action == "accept" else None
