"""Puts the questions of a session, and of slash commands, to the client, as permission requests or forms."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentcli.agent.commands.command import Commands
from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve, Interrupt
from agentcli.agent.permissions.approvals import NOBODY_LEFT
from agentcli.agent.session import Session
from agentcli.errors import UsageError, UserError
from agentcli.frontends.acp.client import Client, Option
from agentcli.frontends.acp.rpc import RpcError
from agentcli.frontends.acp.updates import (
    call_id,
    fenced,
    file_diff,
    hidden_characters,
    kind_of,
    notice,
    text_content,
    told_changes,
    updated,
)
from agentcli.frontends.printable import exposed
from agentcli.frontends.screenless import ScreenlessHost
from agentcli.frontends.session_opener import SessionOpener

log = logging.getLogger(__name__)

Answers = list[tuple[Option, Approve]]

_WAYS = (  # to go on with a plan
    ("Carry it out", "allow_once", ""),
    ("Carry it out, accepting edits", "allow_always", "acceptEdits"),
    ("Carry it out by itself, asking only beyond the project", "allow_always", "auto"),
)
_NOT_YET = "Not yet: keep planning"
_YES_OR_NO = (Option("yes", "Yes", "allow_once"), Option("no", "No", "reject_once"))
_OWN_WORDS = "Or in your own words"


class Questions:
    """Each open question of a session is a request to the client, in a task that ends with it."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session
        self._cwd: Path = session.snapshot().workspace.cwd
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, request: AnyQuestion) -> None:
        task = self._tasks[request.id] = asyncio.create_task(self._ask(request))
        task.add_done_callback(lambda _: self._tasks.pop(request.id, None))

    def forget_settled(self) -> None:
        """Take back what nobody need answer any more."""
        for id in self._tasks.keys() - self._session.asked.keys():
            self._tasks[id].cancel()

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _ask(self, request: AnyQuestion) -> None:
        nobody = Approve(request.id, False, comment=NOBODY_LEFT)
        try:
            match request.kind:
                case "plan":
                    answer = await self._about_plan(request)
                case "ask":
                    answer = await self._in_words(request)
                case _:
                    answer = await self._about_call(request)
        except RpcError as error:
            log.warning("the client could not be asked: %s", error)
            answer = nobody
        except Exception:  # a bug here must not leave the turn waiting for good
            log.exception("a question could not be put")
            answer = nobody
        self._session.submit(answer if answer is not None else Interrupt())

    # What a call may do

    async def _about_call(self, request: AnyQuestion) -> Approve | None:
        """None where the turn was cancelled."""
        call, answers = self._call(request), _answers(request)
        answer = await self._chosen(call, answers)
        if answer is not None and answer.allowed and request.call.name:
            self._client.update(self._session.id, updated(call["toolCallId"], status="in_progress"))
        return answer

    async def _chosen(self, call: dict[str, Any], answers: Answers) -> Approve | None:
        chosen = await self._client.choose(self._session.id, call, [option for option, _ in answers])
        return next((answer for option, answer in answers if option.id == chosen), None)

    def _call(self, request: AnyQuestion) -> dict[str, Any]:
        """The call with all that it would do; nothing in it is invisible."""
        use = request.call
        why = " · ".join(exposed(text) for text in (*request.effects, request.reason) if text)
        call: dict[str, Any] = {
            "toolCallId": call_id(request.agent_id, use.id),
            "title": exposed(request.title),
            "kind": kind_of(use.name),
            "status": "pending",
        }
        content = [text_content(why)] if why else []
        if request.kind == "keep":
            for text in request.hunks:
                content += told_changes(text, self._cwd)
        elif changes := file_diff(request.preview, self._cwd):
            content += [*changes["content"], *hidden_characters(request.preview)]
            call["locations"] = changes["locations"]
        elif request.preview:
            content.append(text_content(fenced(exposed(request.preview), "sh" if use.name == "bash" else "")))
        if use.input:
            call["rawInput"] = use.input
        return {**call, "content": content}

    # The model's own questions

    async def _in_words(self, request: AnyQuestion) -> Approve | None:
        id, session_id, options = request.id, self._session.id, request.options
        if self._client.can.has_forms:
            fields, required = _form(options, "Answer")
            key = call_id(request.agent_id, request.call.id)
            said = await self._client.fill_in(session_id, request.title, fields, required=required, call_id=key)
            words = _said(said)
            return Approve(id, bool(words), comment=words)
        if not options:
            return Approve(id, False, comment=NOBODY_LEFT)
        rows = enumerate(options)
        answers = [_answer(request, f"answer:{n}", text, "allow_once", comment=text) for n, text in rows]
        leave = _answer(request, "leave", "None of these", "reject_once")
        return await self._chosen(self._call(request), [*answers, leave])

    async def _about_plan(self, request: AnyQuestion) -> Approve | None:
        id = request.id
        rows = enumerate(_WAYS)
        ways = [_answer(request, f"way:{n}", label, kind, mode=mode) for n, (label, kind, mode) in rows]
        not_yet = _answer(request, "not-yet", _NOT_YET, "reject_once")
        if not self._client.can.has_forms:
            call = self._call(request) | {"kind": "switch_mode", "content": [text_content(exposed(request.preview))]}
            return await self._chosen(call, [*ways, not_yet])
        fields, _ = _form([*(option.name for option, _ in ways), _NOT_YET], request.title)
        fields["words"] |= {"title": "What to change first"}
        said = await self._client.fill_in(self._session.id, request.title, fields) or {}
        if isinstance(words := said.get("words"), str) and words.strip():
            return Approve(id, False, comment=words.strip())
        return next((answer for option, answer in ways if option.name == said.get("choice")), Approve(id, False))


def _form(options: Sequence[str], title: str) -> tuple[dict[str, Any], list[str]]:
    """The fields of a form, and those that are required: a choice if there is one, and words."""
    if not options:
        return {"words": {"type": "string", "title": title}}, ["words"]
    choice = {"type": "string", "title": title, "enum": list(options)}
    return {"choice": choice, "words": {"type": "string", "title": _OWN_WORDS}}, []


def _said(filled: dict[str, Any] | None) -> str:
    """The words, else the choice; empty for neither."""
    given = [(filled or {}).get(name) for name in ("words", "choice")]
    return next((text.strip() for text in given if isinstance(text, str) and text.strip()), "")


def _answer(request: AnyQuestion, id: str, name: str, kind: str, **how: Any) -> tuple[Option, Approve]:
    return Option(id, name, kind), Approve(request.id, kind != "reject_once", **how)


def _answers(request: AnyQuestion) -> Answers:
    """The options of a question about a call, and the answer that each stands for."""
    answer, is_tried = partial(_answer, request), request.kind == "keep"
    answers = [answer("once", "Keep the changes" if is_tried else "Allow", "allow_once")]
    if not request.call.name:  # about the turn itself
        return [*answers, answer("no", "Stop", "reject_once")]
    if request.can_try:
        answers.append(answer("try", "Try it on a copy first, then decide", "allow_once", scope="try"))
    if mode := request.mode:
        name = "Allow all edits in this session"
        answers.append(answer(f"mode:{mode}", name, "allow_always", scope="session", mode=mode))
    verb = "Keep, and run directly:" if is_tried else "Allow"
    for number, rule in enumerate(request.rules):
        name = f"{verb} {exposed(rule)} in this session"
        answers.append(answer(f"session:{number}", name, "allow_always", scope="session", rule=rule))
    for rule in request.rules[:1]:
        name = f"{verb} {exposed(rule)} in this project, always"
        answers.append(answer("always", name, "allow_always", scope="always", rule=rule))
    return [*answers, answer("no", "Drop the changes" if is_tried else "Reject", "reject_once")]


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
