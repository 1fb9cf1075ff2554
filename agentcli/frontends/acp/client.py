"""Represents the client: its capabilities, the requests and updates sent to it, and the files it holds."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from agentcli.agent.calls.model import NOBODY_LEFT
from agentcli.agent.commands.command import ChoiceIndex, CommandSet
from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, PlanApproval, Question
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.ops import Approve, Interrupt
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.frontends.acp import updates
from agentcli.frontends.acp.messages import AcpMessage, ClientCapabilities, FormAnswer, Permission, TextFile
from agentcli.frontends.acp.rpc import INTERNAL_ERROR, Connection, RpcError
from agentcli.frontends.choices import choices_for
from agentcli.frontends.printable import exposed
from agentcli.frontends.screenless import ScreenlessHost
from agentcli.frontends.session_opener import SessionOpener
from agentcli.tools.command import Grants
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.text.encoding import DecodedText, decode

log = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=AcpMessage)

MAX_FILE_BYTES = 10 * 1024 * 1024  # of a file that an editor is asked for
FILE_TIMEOUT_S = 30.0


def option(id: str, name: str, kind: str) -> dict[str, str]:
    """Return an answer to a permission request; `kind` is allow_once, allow_always, reject_once or reject_always."""
    return {"optionId": id, "name": name, "kind": kind}


class Client:
    """`can` is known once the client has introduced itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.can = ClientCapabilities()

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        self.connection.notify("session/update", {"sessionId": session_id, "update": update})

    async def request(self, method: str, answer: type[M], **params: Any) -> M:
        """Raises `RpcError`, also for an answer that makes no sense."""
        given = await self.connection.request(method, params)
        try:
            return msgspec.convert(given, answer)
        except msgspec.ValidationError as error:
            raise RpcError(INTERNAL_ERROR, f"The client's answer to {method} makes no sense: {error}") from error

    async def choose(self, session_id: str, call: dict[str, Any], options: Sequence[dict[str, str]]) -> str | None:
        """Ask for permission; returns the id of the option, None if the turn was cancelled. Raises `RpcError`."""
        params = {"sessionId": session_id, "toolCall": call, "options": options}
        outcome = (await self.request("session/request_permission", Permission, **params)).outcome
        return outcome.option_id if outcome.outcome == "selected" else None

    async def fill_in(
        self, session_id: str, message: str, fields: dict[str, Any], *, required: Sequence[str] = (), call_id: str = ""
    ) -> dict[str, Any] | None:
        """Show a form; returns its values, None if the person did not fill it in. Raises `RpcError`."""
        schema = {"type": "object", "properties": fields, "required": list(required)}
        params = {"sessionId": session_id, "mode": "form", "message": message, "requestedSchema": schema}
        about = {"toolCallId": call_id} if call_id else {}
        filled = await self.request("elicitation/create", FormAnswer, **params, **about)
        return (filled.content or {}) if filled.action == "accept" else None


class ClientFiles:
    """Asks the editor first for files with unsaved changes; commands see the disk. A refused write fails."""

    def __init__(self, client: Client, cwd: Path, session_id: str) -> None:
        self._client = client
        self._cwd, self._real_cwd = cwd, cwd.resolve()
        self._session_id = session_id
        self._loop = asyncio.get_running_loop()
        self._disk: Sandbox
        self._roots: Callable[[], Sequence[Path]]

    def sandbox(self, made: Sandbox, roots: Callable[[], Sequence[Path]]) -> Sandbox:
        self._disk, self._roots = made, roots
        return cast("Sandbox", _Over(made, read=self._read, write=self._write))

    def checkpoints(self, made: Checkpoints) -> Checkpoints:
        """Save unsaved changes before a call edits their file, so that undoing the call leaves them alone."""

        async def begin(call_id: str, paths: Sequence[Path] | None) -> Any:
            for path in paths or ():
                await asyncio.to_thread(self._save, path)
            return await made.begin(call_id, paths)

        return cast("Checkpoints", _Over(made, begin=begin))

    def _read(self, path: Path) -> BinaryIO:
        file = self._disk.read(path)
        if not self._is_shared(path):
            return file
        on_disk = file.read(MAX_FILE_BYTES + 1)
        if (unsaved := self._unsaved(path, on_disk)) is not None:
            file.close()
            return io.BytesIO(unsaved)
        file.seek(0)
        return file

    def _write(self, path: Path, content: bytes) -> None:
        """Leave exactly `content` on the disk, even if the editor does not save it, or reformats it."""
        decoded = decode(content)
        is_plain = decoded is not None and decoded.encoding == "utf-8" and not decoded.bom
        has_folder = self._disk.look(path.parent).kind is not None
        if decoded is not None and is_plain and has_folder and self._is_shared(path):
            params = {**self._about(path), "content": decoded.text}
            try:
                self._wait(self._client.connection.request("fs/write_text_file", params))
            except (RpcError, TimeoutError) as error:
                raise PermissionError(errno.EACCES, f"the editor did not write it: {error}") from error
            if self._on_disk(path) == content:
                return
        self._disk.write(path, content)

    def _save(self, path: Path) -> None:
        """Raises `ToolError`."""
        on_disk = self._on_disk(path)
        if on_disk is None or not self._is_shared(path):
            return
        try:
            if (unsaved := self._unsaved(path, on_disk)) is not None:
                self._write(path, unsaved)
        except OSError as error:
            raise ToolError(
                f"The changes of {path.name} in the editor could not be saved: {error.strerror}."
            ) from error

    def _unsaved(self, path: Path, on_disk: bytes) -> bytes | None:
        """Return the file as the editor would save it; None if it has no unsaved changes."""
        if len(on_disk) > MAX_FILE_BYTES or (decoded := decode(on_disk)) is None or not decoded.is_certain:
            return None  # in a file of unknown encoding, other letters than the editor's are no change
        try:
            asked = self._client.request("fs/read_text_file", TextFile, **self._about(path))
            text = _lines(self._wait(asked).content)
        except (RpcError, TimeoutError) as error:
            log.debug("%s is read from the disk: %s", path, error)
            return None
        return None if text == _lines(decoded.text) else _as_saved(text, decoded)

    def _on_disk(self, path: Path) -> bytes | None:
        try:
            with self._disk.read(path) as file:
                return file.read()
        except OSError:
            return None

    def _is_shared(self, path: Path) -> bool:
        """True for the workspace's files that git does not obey; False in the event loop, which cannot wait."""
        try:
            if asyncio.get_running_loop() is self._loop:
                return False
        except RuntimeError:
            pass  # in a thread, as it should be
        roots = tuple(self._roots())
        if not any(map(path.is_relative_to, roots)):
            return False
        return not self._disk.look(path, "write", Grants(roots=roots)).is_auto_executed

    def _about(self, path: Path) -> dict[str, Any]:
        """The path is the editor's own, which may have opened the folder through a link."""
        if path.is_relative_to(self._real_cwd):
            path = self._cwd / path.relative_to(self._real_cwd)
        return {"sessionId": self._session_id, "path": str(path)}

    def _wait(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(asked, FILE_TIMEOUT_S), self._loop).result()


class _Over:
    """An object with some of its methods replaced."""

    def __init__(self, made: object, **methods: Any) -> None:
        self._made = made
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def _lines(text: str) -> str:
    """A text as editors hold it: line ends and a byte order mark are not part of it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _as_saved(text: str, before: DecodedText) -> bytes:
    if 0 < before.text.count("\n") == before.text.count("\r\n"):
        text = text.replace("\n", "\r\n")
    try:
        return before.encoded(text)
    except ToolError:  # the encoding lacks a character: the editor will need another one, too
        return text.encode()


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
