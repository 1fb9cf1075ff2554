"""Plays the recorded side of a session: the model, the person's answers, and results that are not made again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from agentcli.agent.calls.record import CallRecord
from agentcli.agent.events import ApprovalRequested
from agentcli.agent.hooks import HookAnswer
from agentcli.agent.interfaces import NEWEST, Appended, SessionLog, Stored
from agentcli.agent.ops import Approve
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import Assistant, Body, entry_now
from agentcli.errors import ToolError, UserError
from agentcli.infra.sessions.ids import entry_id
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm import errors
from agentcli.llm.messages import Message, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Health, Provider, Request, StreamEvent, TextDelta, TokenCount
from agentcli.llm.tokens.estimates import estimate
from agentcli.replay.recording import Recorded, with_paths
from agentcli.tools.tool import Tool, ToolContext, ToolOutput

NO_MORE = "The recording has no further reply."


class RecordedModel:
    """Gives a turn's replies, one for each request; `on_request` sees each request with the place of its reply."""

    def __init__(
        self, info_of: Callable[[str], ModelInfo], on_request: Callable[[Request, int, Assistant], None]
    ) -> None:
        self._info_of = info_of
        self._on_request = on_request
        self._replies: deque[tuple[int, Assistant]] = deque()
        self.name, self.model, self.info = "", "", ModelInfo("", "")
        self.is_overdrawn = False

    def begin(self, turn: Recorded) -> None:
        self._replies, self.is_overdrawn = deque(turn.replies), False
        if turn.replies:
            self._present(turn.replies[0][1])

    @property
    def left(self) -> int:
        return len(self._replies)

    @property
    def next_place(self) -> int | None:
        """The place in the log of the reply that comes next."""
        return self._replies[0][0] if self._replies else None

    def _present(self, reply: Assistant) -> None:
        self.name, self.model = reply.provider, reply.model
        self.info = self._info_of(f"{reply.provider}/{reply.model}")

    async def resolve(self, state: AgentState) -> tuple[Provider, ModelInfo]:
        if not self._replies:
            self.is_overdrawn = True
            raise UserError(NO_MORE)
        self._present(self._replies[0][1])
        return self, self.info

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        place, reply = self._replies.popleft()
        self._on_request(request, place, reply)
        if reply.stop_reason == "interrupted":
            message = Message("assistant", reply.content)
            yield TextDelta(message.text)
            broken = errors.ConnectionFailed("The recorded answer breaks off here.")
            broken.partial = message
            raise broken
        yield Done(Message("assistant", reply.content), reply.stop_reason, reply.usage, reply.model)

    async def count_tokens(self, request: Request) -> TokenCount:
        return estimate(request, self.info)

    async def health_check(self) -> Health:
        return Health(True, "a recording")

    async def aclose(self) -> None:
        pass


class RecordedCalls:
    """Implements `CallHooks`: what was allowed then is allowed now, and what was denied is denied.

    Inputs name the copy in place of the workspace. `apply` does to files what a call did that is not made again.
    """

    def __init__(self, root: Path, copy: Path, apply: Callable[[Iterable[Any]], None]) -> None:
        self._paths = str(root), str(copy)
        self._apply = apply
        self._answers: dict[str, deque[bool]] = {}
        self.turn = Recorded(0, 0, ())

    def begin(self, turn: Recorded) -> None:
        self.turn = turn
        self._answers = {id: deque(turn.answers(id)) for id in turn.calls} if turn.asked else {}

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        id, fate = record.id, self.turn.fate(record.id)
        if fate == "denied":
            raise ToolError(self.turn.refusal(id), kind="permission_denied")
        if fate == "skipped":
            raise ToolError("It was not run then.", kind="permission_denied")
        given = with_paths(input, *self._paths)
        return HookAnswer("" if fate == "again" and self.turn.was_tried(id) else "allow", input=given)

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        return None

    async def ask(self, request: ApprovalRequested, decide: object) -> Approve:
        """The person's answer; a no where there was no question then."""
        said = self._answers.get(request.call.id)
        return Approve(request.id, bool(said and said.popleft()))

    def playing(self, tool: Tool) -> Tool:
        """The tool, giving the recorded result of calls that are not made again."""
        mode = "server" if tool.mode == "client" or tool.name in ("create_subagent", "ask_user") else tool.mode
        return dataclasses.replace(tool, run=partial(self._run, tool), mode=mode)

    async def _run(self, tool: Tool, arguments: Any, context: ToolContext) -> ToolOutput:
        if self.turn.fate(context.call_id) != "recorded":
            return await tool.output(arguments, context)
        self._apply(self.turn.changes(context.call_id))
        made = self.turn.results[context.call_id]
        return ToolOutput(made.result.content, made.structured, made.summary, made.result.is_error)


class RecordedLog:
    """Implements `SessionLog`: entries have the ids they had, kind by kind, so that later ones can name them."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._newest: str | None = None
        self._ids: dict[type, deque[str]] = {}

    def begin(self, turn: Recorded, after: str | None) -> None:
        self._newest, self._ids = after, {}
        for entry in turn.entries:
            self._ids.setdefault(type(entry.body), deque()).append(entry.id)

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        parent, entries = self._newest if parent_id == NEWEST else parent_id, []
        for body in bodies:
            known = self._ids.get(type(body))
            entries.append(entry_now(known.popleft() if known else entry_id(body), parent, body))
            parent = self._newest = entries[-1].id
        committed = asyncio.get_running_loop().create_future()
        committed.set_result(Stored(tuple(entries), 1))
        return Appended(tuple(entries), committed)

    def is_wanted(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class OneSession(MemorySessions):
    """A store of the one session that is played."""

    def __init__(self, log: RecordedLog) -> None:
        super().__init__()
        self._log = log

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        return self._log


class Closed:
    """A sandbox in which nothing further is opened, whatever was granted then."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def grant(self, path: Path, access: object) -> None:
        pass

    def grant_host(self, host: str) -> None:
        pass

    def revoke(self, path: Path, access: object) -> None:
        pass

    def revoke_host(self, host: str) -> None:
        pass
