"""Runs one session for a client: prompts and settings come in, updates go out."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, get_args

from agentcli.agent import events
from agentcli.agent.ops import Op, Prompt, SetEffort, SetMode, SetModel
from agentcli.agent.permissions.modes import MODE_TEXTS, MODES, parse_mode
from agentcli.agent.result import INTERRUPTED_EXIT
from agentcli.conversation.entries import Entry, Paid, User
from agentcli.conversation.history import title_of
from agentcli.errors import UsageError
from agentcli.frontends.acp.client import Client, ClientHost, ClientQuestions
from agentcli.frontends.acp.messages import Content, parse_prompt
from agentcli.frontends.acp.rpc import AUTH_REQUIRED, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RpcError
from agentcli.frontends.acp.updates import LiveOutput, Updates, call_id, command_output, notice, replay_updates
from agentcli.frontends.hosts import NOT_OFFERED, OpenSession, TypedCommand
from agentcli.frontends.printable import fenced
from agentcli.frontends.run_end import ended_jobs_notice
from agentcli.llm.messages import Block
from agentcli.llm.provider import Effort

log = logging.getLogger(__name__)

_STOP_REASONS = {"max_tokens": "max_tokens", "max_turns": "max_turn_requests", "interrupted": "cancelled"}
_EFFORTS: tuple[Effort, ...] = get_args(Effort)
_MODES = [(mode, MODE_TEXTS[mode].name.capitalize(), MODE_TEXTS[mode].meaning) for mode in MODES]
DEFAULT_EFFORT = "default"  # as in the settings
_CANCELLED = {"stopReason": "cancelled"}
_Models = Sequence[tuple[str, str]]  # names, and descriptions


class ClientSession:
    """A session that a client has open. `on_taken_over` is called when another program takes it over."""

    def __init__(
        self, opened: OpenSession, models: _Models, client: Client, *, on_taken_over: Callable[[], None]
    ) -> None:
        self._opened = opened
        self._models = models
        self._client = client
        self._on_taken_over = on_taken_over
        self._session = session = opened.session
        self.id = session.id
        self._host = ClientHost(opened.opener, session, opened.commands, client)
        self._cwd = session.snapshot().workspace.cwd
        self._updates = Updates(self._cwd, window=self._window, shows_claims=opened.opener.shows_claims)
        self._live = LiveOutput(self._send)
        self._questions = ClientQuestions(client, session)
        self._ended_turns_sent = session.turns_begun  # turns whose updates were all sent; earlier turns need none
        self._turn_end_sent = asyncio.Event()
        self._end: events.Done | events.TurnFailed | None = None  # of the newest turn
        # A prompt is being answered; the client has cancelled the newest one; the model has refused it.
        self._is_answering = self._is_cancelled = self._is_refused = False
        self._title = title_of(session.snapshot().conversation.path)
        self._options_sent = self.settings()["configOptions"]
        self._follower = asyncio.create_task(self._follow(session.subscribe()))

    def _window(self, model: str) -> int:
        return self._opened.opener.model_info(model).window

    def settings(self) -> dict[str, Any]:
        """Return the modes, and the options that the client may set, in the form of the answer to session/new."""
        shown, models = self._session.snapshot(), [(name, name, detail) for name, detail in self._models]
        if shown.model not in dict(self._models):  # a model that is not listed may be in use
            models.insert(0, (shown.model, shown.model, ""))
        efforts = [(DEFAULT_EFFORT, "Default", "from the settings, or the model default")]
        efforts += [(effort, effort.capitalize(), "") for effort in _EFFORTS]
        options = [
            _select("mode", "Permission mode", shown.mode, _MODES),
            _select("model", "Model", shown.model, models),
            _select("effort", "Thinking", shown.effort or DEFAULT_EFFORT, efforts),
        ]
        modes = [{"id": mode, "name": name, "description": detail} for mode, name, detail in _MODES]
        return {"modes": {"currentModeId": shown.mode, "availableModes": modes}, "configOptions": options}

    async def replay(self) -> None:
        shown = self._session.snapshot()
        for update in replay_updates(shown, window=self._window(shown.model)):
            self._send(update)
            await self._client.connection.out.wait_for_room()

    def send_commands(self) -> None:
        commands = [
            {"name": command.name, "description": command.help}
            | ({"input": {"hint": command.argument}} if command.argument else {})
            for command in self._opened.commands
            if command.name not in NOT_OFFERED
        ]
        self._send({"sessionUpdate": "available_commands_update", "availableCommands": commands})

    async def answer_prompt(self, content: Sequence[Content]) -> dict[str, Any]:
        """Answer a prompt, or run it as a command; return the answer to session/prompt. Raises `RpcError`."""
        if self._is_answering:
            raise RpcError(INVALID_REQUEST, "This session is already answering a prompt. To stop it: session/cancel")
        self._is_answering, self._is_cancelled, self._is_refused = True, False, False
        try:
            return await self._answer(content)
        except asyncio.CancelledError:  # by $/cancel_request
            self.cancel()
            await self._wait_for_turns()
            return _CANCELLED
        finally:
            self._is_answering = False

    def cancel(self) -> None:
        self._is_cancelled = True
        self._host.interrupt()

    async def _answer(self, content: Sequence[Content]) -> dict[str, Any]:
        try:
            parts = parse_prompt(content, self._cwd)
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {error}.") from error
        if (command := self._host.command_in(parts.text)) is not None:
            prompt = await self._run_command(command, parts.media)
            if prompt is None:
                return _CANCELLED if self._is_cancelled else {"stopReason": "end_turn"}
        else:
            naming_files = " ".join((parts.text, *parts.links))  # files that these words name are attached
            blocks = await asyncio.to_thread(self._host.attach, parts.text, typed=naming_files)
            prompt = Prompt((*blocks, *parts.media))
        await self._wait_for_turns()  # a subagent's report may have started a turn
        if self._is_cancelled:
            return _CANCELLED
        self._updates.own_prompts.append(prompt.blocks)  # so that it is not sent back to the client
        self._session.submit(prompt)
        await self._wait_for_turns()
        return self._stop_reason()

    async def _run_command(self, command: TypedCommand, media: Sequence[Block]) -> Prompt | None:
        """Run a slash command, and return the prompt that it stands for; None if it stands for none."""
        ended = await self._host.run(command, more=media)
        self._send_settings()
        if ended.prompt is not None:
            return ended.prompt
        self._is_cancelled |= ended.exit_code == INTERRUPTED_EXIT
        if ended.output:
            # Markdown would join the lines of an output; it may join those of an error, which are sentences.
            needs_fence = "\n" in ended.output.strip() and not ended.exit_code
            self._send(command_output(fenced(ended.output) if needs_fence else ended.output))
        return None

    def _stop_reason(self) -> dict[str, Any]:
        """Return the answer to session/prompt for the turn that just ended. Raises `RpcError`."""
        match self._end:
            case events.Done(reason=reason):
                return {"stopReason": _STOP_REASONS.get(reason, "end_turn"), "_meta": {"agentcli": {"reason": reason}}}
            case events.TurnFailed(error, is_retryable, kind) if not self._is_cancelled:
                if self._is_refused:
                    self._send(notice(error, "error"))
                    return {"stopReason": "refusal"}
                code = AUTH_REQUIRED if kind in ("AuthError", "NoKey") else INTERNAL_ERROR
                raise RpcError(code, error, {"errorType": kind, "isRetryable": is_retryable})
            case _:
                return _CANCELLED

    async def _wait_for_turns(self) -> None:
        while self._session.turns_begun > self._ended_turns_sent:
            self._turn_end_sent.clear()
            await self._turn_end_sent.wait()

    async def set_option(self, option: str, value: str) -> None:
        op: Op
        match option:
            case "model":
                await self._host.check_model(value)
                op = SetModel(value)
            case "mode":
                op = SetMode(parse_mode(value))
            case "effort":
                effort = next((effort for effort in _EFFORTS if effort == value), None)
                if effort is None and value != DEFAULT_EFFORT:
                    raise UsageError(f"Unknown effort {value!r}. Use {', '.join((DEFAULT_EFFORT, *_EFFORTS))}.")
                op = SetEffort(effort)  # None: as in the settings
            case _:
                raise UsageError(f"Unknown option {option!r}. Choose one of mode, model, effort.")
        self._session.submit(op)
        self._send_settings()

    def _send_settings(self) -> None:
        options = self.settings()["configOptions"]
        if options != self._options_sent:
            self._options_sent = options
            self._send({"sessionUpdate": "config_option_update", "configOptions": options})

    def _send(self, update: dict[str, Any]) -> None:
        self._client.update(self.id, update)

    async def _follow(self, stream: AsyncGenerator[events.Event, None]) -> None:
        """Send updates on the session's events, as fast as the client reads them."""
        async for event in stream:
            try:
                self._show(event)
            except Exception:  # a bug in an update must not leave the prompt without an answer
                log.exception("no update could be made of an event: %r", event)
            if isinstance(event, events.Done | events.TurnFailed) and event.agent_id == "main":
                self._end = event
                self._ended_turns_sent += 1
                self._turn_end_sent.set()
            await self._client.connection.out.wait_for_room()

    def _show(self, event: events.Event) -> None:
        """Send the client what an event changes for it: updates, live output, questions, settings, the title."""
        if isinstance(event, events.ToolFinished):
            self._live.end(call_id(event.agent_id, event.id))
        for update in self._updates.updates_for(event):
            self._send(update)
        match event:
            case events.OutputDelta(id, text):
                self._live.add(call_id(event.agent_id, id), text)
            case events.QuestionEvent():
                self._questions.ask(event)
            # An interrupted call or turn ends without an answer to its question.
            case events.ApprovalSettled() | events.ToolFinished() | events.Done() | events.TurnFailed():
                self._questions.withdraw_settled()
            case events.ModeChanged() | events.ProviderSwitched() if event.agent_id == "main":
                self._send_settings()
            case events.EntryStored(Entry(body=Paid(reason="refused"))):
                self._is_refused = True
            case events.EntryStored(Entry(body=User())) if not self._title:
                if title := title_of(self._session.snapshot().conversation.path):
                    self._title = title
                    self._send({"sessionUpdate": "session_info_update", "title": title})
            case events.TakenOver():
                self._on_taken_over()

    async def close(self) -> None:
        """Interrupt the turn, so that the open prompt is answered, and close the session."""
        self.cancel()
        await self._wait_for_turns()
        if jobs := ended_jobs_notice(self._session):
            self._send(notice(jobs, "warning"))
        try:
            await self._session.close()
        finally:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            await self._questions.aclose()
            self._live.close()
            await self._opened.aclose()


def _select(id: str, name: str, current: str, options: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return a config option of the protocol; `options` are its values, each with a name and a description."""
    rows = [
        {"value": value, "name": label, **({"description": detail} if detail else {})}
        for value, label, detail in options
    ]
    category = "thought_level" if id == "effort" else id
    return {"id": id, "name": name, "category": category, "type": "select", "currentValue": current, "options": rows}
