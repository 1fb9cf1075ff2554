"""Represents the client: the requests, updates and questions sent to it, and the files that it has open."""

import asyncio
import errno
import io
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from agentcli.agent.calls.model import NOBODY_LEFT
from agentcli.agent.commands.command import CommandSet
from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, PlanApproval, Question
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.ops import Approve, Interrupt
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.frontends.acp import updates
from agentcli.frontends.acp.messages import ClientCapabilities
from agentcli.frontends.acp.rpc import INTERNAL_ERROR, Connection, RpcError
from agentcli.frontends.choices import Choice, choices_for
from agentcli.frontends.hosts import ScreenlessHost, SessionOpener
from agentcli.frontends.printable import escape_hidden, fenced
from agentcli.tools.command import Grants
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.text.encoding import BOM

log = logging.getLogger(__name__)
T = TypeVar("T")


def option(id: str, name: str, kind: str) -> dict[str, str]:
    """Return an option of a permission request; `kind` is allow_once, allow_always, reject_once or reject_always."""
    return {"optionId": id, "name": name, "kind": kind}


class Client:
    """Sends updates and requests to the client; requests raise `RpcError`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.capabilities = ClientCapabilities()  # replaced by those of `initialize`

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        if update["sessionUpdate"] == "notice" and not self.capabilities.takes_notices:
            update = updates.notice_as_call(update)
        self.connection.notify("session/update", {"sessionId": session_id, "update": update})

    async def choose(self, session_id: str, call: dict[str, Any], options: Sequence[dict[str, str]]) -> str | None:
        """Ask for permission for a call; return the id of the chosen option, or None if the turn was cancelled."""
        params = {"sessionId": session_id, "toolCall": call, "options": options}
        match await self.connection.request("session/request_permission", params):
            case {"outcome": {"outcome": "selected", "optionId": str(id)}}:
                return id
            case {"outcome": {"outcome": "cancelled"}}:
                return None
            case answer:
                raise _invalid_answer("session/request_permission", answer)

    async def read_file(self, params: dict[str, Any]) -> str:
        match await self.connection.request("fs/read_text_file", params):
            case {"content": str(text)}:
                return text
            case answer:
                raise _invalid_answer("fs/read_text_file", answer)


def _invalid_answer(method: str, answer: object) -> RpcError:
    return RpcError(INTERNAL_ERROR, f"The client's answer to {method} is invalid: {answer!r:.200}")


MAX_FILE_BYTES = 10 * 1024 * 1024  # larger files are read from the disk, without asking the editor
FILE_TIMEOUT_S = 30.0  # for the editor to read or write a file


class ClientFiles:
    """Reads and writes files through the editor, so that tools see its unsaved changes. Commands see only the disk.

    A write that the editor refuses fails. Methods block, so they are called in threads; `_loop` serves the connection.
    """

    def __init__(self, client: Client, cwd: Path, session_id: str) -> None:
        self._client = client
        self._cwd, self._real_cwd = cwd, cwd.resolve()
        self._session_id = session_id
        self._loop = asyncio.get_running_loop()
        self._disk: Sandbox  # set by `sandbox`
        self._roots: Callable[[], Sequence[Path]]  # set by `sandbox`

    def sandbox(self, disk: Sandbox, roots: Callable[[], Sequence[Path]]) -> Sandbox:
        """Return `disk` with reading and writing through the editor; `roots` are the workspace's folders."""
        self._disk, self._roots = disk, roots
        return cast("Sandbox", _Wrapper(disk, read=self._read, write=self._write))

    def checkpoints(self, checkpoints: Checkpoints) -> Checkpoints:
        """Return `checkpoints` that save the editor's changes first, so that undoing a call does not revert them."""

        async def begin(call_id: str, paths: Sequence[Path] | None) -> Any:
            for path in paths or ():
                await asyncio.to_thread(self._save, path)
            return await checkpoints.begin(call_id, paths)

        return cast("Checkpoints", _Wrapper(checkpoints, begin=begin))

    def _read(self, path: Path) -> BinaryIO:
        file = self._disk.read(path)
        if not self._is_served_by_editor(path):
            return file
        if (unsaved := self._unsaved(path, file.read(MAX_FILE_BYTES + 1))) is not None:
            file.close()
            return io.BytesIO(unsaved)
        file.seek(0)
        return file

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file through the editor, so that its open copy stays current, or to the disk if the editor cannot."""
        text = _utf8_text(content)
        has_folder = self._disk.look(path.parent).kind is not None  # not every editor creates missing folders
        # An editor drops a byte order mark.
        if text is not None and not text.startswith(BOM) and has_folder and self._is_served_by_editor(path):
            params = {**self._params(path), "content": text}
            try:
                self._wait_for(self._client.connection.request("fs/write_text_file", params))
            except (RpcError, TimeoutError) as error:
                raise PermissionError(errno.EACCES, f"the editor could not write it: {error}") from error
            if self._on_disk(path) == content:
                return  # else the editor has not saved the file, or has reformatted it
        self._disk.write(path, content)

    def _save(self, path: Path) -> None:
        """Write the editor's unsaved changes to the disk. Raises `ToolError`."""
        on_disk = self._on_disk(path)
        if on_disk is None or not self._is_served_by_editor(path):
            return
        try:
            if (unsaved := self._unsaved(path, on_disk)) is not None:
                self._write(path, unsaved)
        except OSError as error:
            raise ToolError(f"Could not save the editor's changes to {path.name}: {error.strerror}.") from error

    def _unsaved(self, path: Path, on_disk: bytes) -> bytes | None:
        """Return the file as the editor would save it; None if it has no unsaved changes."""
        before = _utf8_text(on_disk)
        if before is None:
            return None
        try:
            text = _as_edited(self._wait_for(self._client.read_file(self._params(path))))
        except (RpcError, TimeoutError) as error:
            log.debug("%s is read from the disk: %s", path, error)
            return None
        return None if text == _as_edited(before) else _as_saved(text, before)

    def _on_disk(self, path: Path) -> bytes | None:
        try:
            with self._disk.read(path) as file:
                return file.read()
        except OSError:
            return None

    def _is_served_by_editor(self, path: Path) -> bool:
        """Return True for files that go through the editor: those in the workspace that are not auto-executed.

        In the event loop it is False, because waiting there for the editor's answer would block the connection.
        """
        with suppress(RuntimeError):  # no event loop runs in this thread, so it can wait
            if asyncio.get_running_loop() is self._loop:
                return False
        roots = tuple(self._roots())
        is_inside = any(map(path.is_relative_to, roots))
        return is_inside and not self._disk.look(path, "write", Grants(roots=roots)).is_auto_executed

    def _params(self, path: Path) -> dict[str, Any]:
        if path.is_relative_to(self._real_cwd):
            path = self._cwd / path.relative_to(self._real_cwd)
        return {"sessionId": self._session_id, "path": str(path)}

    def _wait_for(self, answer: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(answer, FILE_TIMEOUT_S), self._loop).result()


class _Wrapper:
    """Forwards everything to an object, except for the methods that are replaced."""

    def __init__(self, wrapped: object, **methods: Any) -> None:
        self._wrapped = wrapped
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def _utf8_text(content: bytes) -> str | None:
    """Return a file's text; None if it is too large, binary, or not UTF-8: an editor may show it differently."""
    if len(content) > MAX_FILE_BYTES or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _as_edited(text: str) -> str:
    """Normalize a text for comparison: editors drop a byte order mark and convert line ends."""
    return text.removeprefix(BOM).replace("\r\n", "\n")


def _as_saved(text: str, before: str) -> bytes:
    """Encode an editor's text like the file `before`: with its byte order mark, and with CRLF if all lines had it."""
    lines = before.count("\n")
    if lines and before.count("\r\n") == lines:
        text = text.replace("\n", "\r\n")
    return (BOM * before.startswith(BOM) + text).encode()


class ClientQuestions:
    """Sends each open question of a session to the client, in a task that ends with the question."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session
        self._cwd: Path = session.snapshot().workspace.cwd
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, question: AnyQuestion) -> None:
        task = self._tasks[question.id] = asyncio.create_task(self._ask(question))
        task.add_done_callback(lambda _: self._tasks.pop(question.id, None))

    def withdraw_settled(self) -> None:
        for id in self._tasks.keys() - self._session.open_questions.keys():
            self._tasks[id].cancel()

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _ask(self, question: AnyQuestion) -> None:
        answer: Approve | None = Approve(question.id, allowed=False, comment=NOBODY_LEFT)  # unless it answers
        try:
            match question:
                case Question() if self._client.capabilities.has_forms:
                    answer = await self._answer_in_form(question)
                case Question(options=()):
                    pass  # without a form the person cannot enter an answer
                case _:
                    answer = await self._choose_answer(question)
        except RpcError as error:
            log.warning("the client could not be asked: %s", error)
        except Exception:  # a bug here must not leave the turn waiting for ever
            log.exception("a question could not be put")
        self._session.submit(answer if answer is not None else Interrupt())  # None: the client cancelled the turn

    async def _choose_answer(self, question: AnyQuestion) -> Approve | None:
        choices = choices_for(question, question.rules)
        call = self._describe_call(question)
        chosen = await self._client.choose(self._session.id, call, list(map(_option_for, choices)))
        answer = next((choice.answer for choice in choices if choice.id == chosen), None)
        # Questions and plans of the model are not about a call, nor is a question about the turn: its call has no name.
        is_about_call = question.call.name and not isinstance(question, Question | PlanApproval)
        if is_about_call and answer is not None and answer.allowed:  # the question has shown the call as pending
            self._client.update(self._session.id, updates.call_update(call["toolCallId"], status="in_progress"))
        return answer

    def _describe_call(self, question: AnyQuestion) -> dict[str, Any]:
        """Describe the call and its effects for the permission request, with hidden characters escaped."""
        use = question.call
        content: list[dict[str, Any]] = []
        call: dict[str, Any] = {
            "toolCallId": updates.call_id(question.agent_id, use.id),
            "title": updates.plain_title(question.title, use.name),
            "kind": updates.KINDS.get(use.name, "other"),
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
                    content.append(updates.code_content(escape_hidden(preview), "sh" if use.name == "bash" else ""))
            case Question(title=words) if words != call["title"]:  # `plain_title` has shortened it to one plain line
                content = [updates.text_content(escape_hidden(words))]
            case PlanApproval(preview=preview):
                call["kind"] = "switch_mode"
                content = [updates.text_content(escape_hidden(preview))]
        why = " · ".join(escape_hidden(text) for text in (*question.effects, question.reason) if text)
        if use.input:
            call["rawInput"] = use.input
        return {**call, "content": [*([updates.text_content(why)] if why else []), *content]}

    async def _answer_in_form(self, question: Question) -> Approve:
        form: dict[str, Any] = {"properties": {"words": {"type": "string", "title": "Answer"}}, "required": ["words"]}
        if question.options:
            choice = {"type": "string", "title": "Answer", "enum": list(question.options)}
            words = {"type": "string", "title": "Or your own answer"}
            form = {"properties": {"choice": choice, "words": words}, "required": []}
        params: dict[str, Any] = {"sessionId": self._session.id, "mode": "form", "message": question.title}
        params["requestedSchema"] = {"type": "object", **form}
        if key := updates.call_id(question.agent_id, question.call.id):
            params["toolCallId"] = key
        text = ""  # stays empty if the person declines
        match await self._client.connection.request("elicitation/create", params):
            case {"action": "accept", "content": dict(values)}:
                text = str(values.get("words") or "").strip() or str(values.get("choice") or "")
            case {"action": str()}:
                pass
            case answer:
                raise _invalid_answer("elicitation/create", answer)
        return Approve(question.id, allowed=bool(text), comment=text)


def _option_for(choice: Choice) -> dict[str, str]:
    """Return a choice as an option of a permission request; an option that grants a rule names it."""
    answer = choice.answer
    # The mode "default" asks before each edit, so it allows nothing beyond this answer.
    allows_more = answer and (answer.mode not in ("", "default") or answer.scope in ("session", "always"))
    kind = "allow_always" if allows_more else "allow_once" if choice.is_yes else "reject_once"
    return option(choice.id, f"{choice.label}: {escape_hidden(choice.rule)}" if choice.rule else choice.label, kind)


class ClientHost(ScreenlessHost):
    """Implements `CommandHost`. It never opens another session, because clients do that themselves."""

    def __init__(self, opener: SessionOpener, session: Session, commands: CommandSet, client: Client) -> None:
        super().__init__(opener, session, commands, stays_open=False)
        self._client = client

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        raise UsageError("Start or load another session in your editor. This one stays open.")

    async def confirm(self, shown: str, question: str) -> bool | None:
        call: dict[str, Any] = {"toolCallId": uuid.uuid4().hex, "title": question, "kind": "other", "status": "pending"}
        call["content"] = [updates.code_content(shown)]
        try:
            options = option("yes", "Yes", "allow_once"), option("no", "No", "reject_once")
            return await self._client.choose(self.session.id, call, options) == "yes"
        except RpcError as error:
            raise UserError(f"Could not ask the question: {error}") from error

    def put_into_input(self, text: str) -> None:
        again = updates.command_output(f"Edit this message or send it again:\n{fenced(text)}")
        self._client.update(self.session.id, again)
