"""Lets slash commands ask the client: yes or no by a permission request, a choice by a form."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from agentcli.agent.commands.command import Commands
from agentcli.agent.session import Session
from agentcli.errors import UsageError, UserError
from agentcli.frontends.acp.client import Client, Option
from agentcli.frontends.acp.rpc import RpcError
from agentcli.frontends.acp.tool_calls import fenced, text_content
from agentcli.frontends.acp.updates import notice
from agentcli.frontends.screenless import ScreenlessHost
from agentcli.frontends.session_opener import SessionOpener

_YES_OR_NO = (Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once"))


class ClientHost(ScreenlessHost):
    """Implements `CommandHost`. It opens no other session: clients do that themselves."""

    def __init__(self, opener: SessionOpener, session: Session, commands: Commands, client: Client) -> None:
        super().__init__(opener, session, commands, stays_open=False)
        self._client = client

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        raise UsageError("Begin or load another session in your editor: this one goes on.")

    async def confirm(self, shown: str, question: str) -> bool | None:
        call = {"toolCallId": uuid.uuid4().hex, "title": question, "kind": "other", "status": "pending"}
        content = [text_content(fenced(shown))]
        try:
            return await self._client.choose(self.session.id, call | {"content": content}, _YES_OR_NO) == "yes"
        except RpcError as error:
            raise UserError(f"The question could not be put: {error}") from error

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        if not self._client.can.has_forms or not options:
            return None
        rows = [{"const": str(n), "title": f"{label}  {detail}".strip()} for n, (label, detail) in enumerate(options)]
        field = {"type": "string", "title": title, "oneOf": rows}
        try:
            filled = await self._client.fill_in(self.session.id, title, {"choice": field}, required=["choice"])
        except RpcError as error:
            raise UserError(f"The question could not be put: {error}") from error
        chosen = str((filled or {}).get("choice", ""))
        return int(chosen) if chosen.isdecimal() and int(chosen) < len(options) else None

    def put_into_input(self, text: str) -> None:
        self._client.update(self.session.id, notice(f"To be sent again, changed or not:\n{fenced(text)}"))
