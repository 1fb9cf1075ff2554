"""Puts the questions of a session, and of slash commands, to the client, as permission requests or forms."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcli.agent.calls.model import NOBODY_LEFT
from agentcli.agent.commands.command import ChoiceIndex, CommandSet
from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, PlanApproval, Question
from agentcli.agent.ops import Approve, Interrupt
from agentcli.agent.session import Session
from agentcli.errors import UsageError, UserError
from agentcli.frontends.acp import updates
from agentcli.frontends.acp.client import Client, option
from agentcli.frontends.acp.rpc import RpcError
from agentcli.frontends.choices import choices_for
from agentcli.frontends.printable import exposed
from agentcli.frontends.screenless import ScreenlessHost
from agentcli.frontends.session_opener import SessionOpener

log = logging.getLogger(__name__)

_YES_OR_NO = (option("yes", "Yes", "allow_once"), option("no", "No", "reject_once"))
_OWN_WORDS = "Or in your own words"


class ClientQuestions:
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
            match request:
                case PlanApproval():
                    answer = await self._about_plan(request)
                case Question():
                    answer = await self._in_words(request)
                case _:
                    call = self._call(request)
                    answer = await self._chosen(call, request)
                    if answer is not None and answer.allowed and request.call.name:
                        self._client.update(self._session.id, updates.updated(call["toolCallId"], status="in_progress"))
        except RpcError as error:
            log.warning("the client could not be asked: %s", error)
            answer = nobody
        except Exception:  # a bug here must not leave the turn waiting for good
            log.exception("a question could not be put")
            answer = nobody
        self._session.submit(answer if answer is not None else Interrupt())

    async def _chosen(self, call: dict[str, Any], question: AnyQuestion) -> Approve | None:
        """Offer the choices of a question; None where the turn was cancelled."""
        choices = choices_for(question, question.rules)
        options = []  # what lasts longer than the call names its rule
        for choice in choices:
            lasts = choice.answer and (choice.answer.mode or choice.answer.scope in ("session", "always"))
            kind = "allow_always" if lasts else "allow_once" if choice.is_yes else "reject_once"
            name = f"{choice.label}: {exposed(choice.rule)}" if choice.rule else choice.label
            options.append(option(choice.id, name, kind))
        chosen = await self._client.choose(self._session.id, call, options)
        return next((choice.answer for choice in choices if choice.id == chosen), None)

    def _call(self, question: AnyQuestion) -> dict[str, Any]:
        """The call with all that it would do; nothing in it is invisible."""
        use, content = question.call, list[dict[str, Any]]()
        call: dict[str, Any] = {
            "toolCallId": updates.call_id(question.agent_id, use.id),
            "title": exposed(question.title),
            "kind": updates.kind_of(use.name),
            "status": "pending",
        }
        match question:
            case ChangesApproval(hunks=hunks):
                for text in hunks:
                    content += updates.changes_content(text, self._cwd)
            case CallApproval(preview=preview):
                if changes := updates.file_diff(preview, self._cwd):
                    content += [*changes["content"], *updates.hidden_characters(preview)]
                    call["locations"] = changes["locations"]
                elif preview:
                    content.append(updates.code_content(exposed(preview), "sh" if use.name == "bash" else ""))
            case PlanApproval(preview=preview):
                call["kind"] = "switch_mode"
                content = [updates.text_content(exposed(preview))]
            case _:
                pass
        why = " · ".join(exposed(text) for text in (*question.effects, question.reason) if text)
        if use.input:
            call["rawInput"] = use.input
        return {**call, "content": [*([updates.text_content(why)] if why else []), *content]}

    # The model's own questions

    async def _in_words(self, question: Question) -> Approve | None:
        id, session_id = question.id, self._session.id
        if self._client.can.has_forms:
            fields, required = _form(question.options, "Answer")
            key = updates.call_id(question.agent_id, question.call.id)
            said = await self._client.fill_in(session_id, question.title, fields, required=required, call_id=key) or {}
            given = (said.get(name) for name in ("words", "choice"))  # words come before a choice
            words = next((text.strip() for text in given if isinstance(text, str) and text.strip()), "")
            return Approve(id, bool(words), comment=words)
        if not question.options:
            return Approve(id, False, comment=NOBODY_LEFT)
        return await self._chosen(self._call(question), question)

    async def _about_plan(self, question: PlanApproval) -> Approve | None:
        if not self._client.can.has_forms:
            return await self._chosen(self._call(question), question)
        answers = {choice.label: choice.answer for choice in choices_for(question)}
        fields, _ = _form([*answers], question.title)
        fields["words"] |= {"title": "What to change first"}
        said = await self._client.fill_in(self._session.id, question.title, fields) or {}
        if isinstance(words := said.get("words"), str) and words.strip():
            return Approve(question.id, False, comment=words.strip())
        return answers.get(str(said.get("choice"))) or Approve(question.id, False)


def _form(options: Sequence[str], title: str) -> tuple[dict[str, Any], list[str]]:
    """The fields of a form, and those that are required: a choice if there is one, and words."""
    if not options:
        return {"words": {"type": "string", "title": title}}, ["words"]
    choice = {"type": "string", "title": title, "enum": list(options)}
    return {"choice": choice, "words": {"type": "string", "title": _OWN_WORDS}}, []


class ClientHost(ScreenlessHost):
    """Implements `CommandHost`. It opens no other session: clients do that themselves."""

    def __init__(self, opener: SessionOpener, session: Session, commands: CommandSet, client: Client) -> None:
        super().__init__(opener, session, commands, stays_open=False)
        self._client = client

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        raise UsageError("Begin or load another session in your editor: this one goes on.")

    async def confirm(self, shown: str, question: str) -> bool | None:
        call = {"toolCallId": uuid.uuid4().hex, "title": question, "kind": "other", "status": "pending"}
        content = [updates.code_content(shown)]
        try:
            return await self._client.choose(self.session.id, call | {"content": content}, _YES_OR_NO) == "yes"
        except RpcError as error:
            raise UserError(f"The question could not be put: {error}") from error

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        if not self._client.can.has_forms or not options or current is not None:
            return None
        rows = [{"const": str(n), "title": f"{label}  {detail}".strip()} for n, (label, detail) in enumerate(options)]
        field = {"type": "string", "title": title, "oneOf": rows}
        try:
            filled = await self._client.fill_in(self.session.id, title, {"choice": field}, required=["choice"])
        except RpcError as error:
            raise UserError(f"The question could not be put: {error}") from error
        chosen = str((filled or {}).get("choice", ""))
        return ChoiceIndex(chosen) if chosen.isdecimal() and int(chosen) < len(options) else None

    def put_into_input(self, text: str) -> None:
        again = updates.notice(f"To be sent again, changed or not:\n{updates.fenced(text)}")
        self._client.update(self.session.id, again)
