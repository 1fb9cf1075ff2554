"""The terminal session: reads a line, runs a command or a turn, and shows what happens."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agentcli.agent.commands.command import Commands
from agentcli.agent.events import ApprovalRequested, Done, Event, Interrupt, Prompt, TurnFailed
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.session import Session
from agentcli.errors import UserError
from agentcli.frontends.terminal import approval
from agentcli.frontends.terminal.prompt import Input
from agentcli.frontends.terminal.render import Renderer
from agentcli.frontends.terminal.theme import Theme
from agentcli.llm.messages import Block

OpenSession = Callable[[str | None], Awaitable[Session]]  # a stored one by id, or a new one


class TerminalApp:
    """Implements `Desk`. What opens sessions is given to it: it knows no store and no provider."""

    def __init__(
        self,
        *,
        open_session: OpenSession,
        list_sessions: Callable[[], Awaitable[Sequence[SessionInfo]]],
        check_model: Callable[[str], str],
        attach: Callable[[str, Session], tuple[Block, ...]],
        commands: Commands,
        theme: Theme,
        renderer: Renderer,
        history_file: Path | None,
        banner: str,
    ) -> None:
        self._open = open_session
        self._list = list_sessions
        self._check_model = check_model
        self._attach = attach
        self._commands = commands
        self._renderer = renderer
        self._banner = banner
        self._session: Session | None = None
        self._events: asyncio.Task[Event] | None = None
        self._leaving = False
        self._input = Input(commands, history_file, colours=theme.colours)

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._list()

    async def open_session(self, session_id: str | None) -> Session:
        if self._session is not None:
            opened = await self._open(session_id)
            await self._session.close()
        else:
            opened = await self._open(session_id)
        self._session = opened
        return opened

    def check_model(self, name: str) -> str:
        return self._check_model(name)

    def leave(self) -> None:
        self._leaving = True

    async def run(self, first: Callable[[], Awaitable[Session]], prompt: str | None) -> int:
        """Show the input at once; `first` opens the session while the person types. Gives the exit code."""
        self._renderer.line(self._banner, "dim")
        opening: asyncio.Task[Session] | None = None

        def start_opening() -> None:
            nonlocal opening
            if opening is None:
                opening = asyncio.ensure_future(first())
                opening.add_done_callback(self._stop_asking_if_it_failed)

        try:
            while not self._leaving:
                if prompt is None:
                    try:
                        text = await self._read(start_opening)
                    except (EOFError, KeyboardInterrupt):
                        if opening is not None and opening.done():
                            opening.result()  # raises what kept the session from opening
                        break
                else:
                    text, prompt = prompt, None
                start_opening()
                assert opening is not None
                if self._session is None:
                    self._session = await opening
                await self._accept_input(text)
            return 0
        finally:
            if opening is not None and self._session is None:
                opening.cancel()
                await asyncio.wait([opening])
            if self._session is not None:
                await self._session.close()

    def _stop_asking_if_it_failed(self, opening: asyncio.Task[Session]) -> None:
        if not opening.cancelled() and opening.exception() is not None:
            self._input.stop()

    async def _read(self, on_first_frame: Callable[[], None]) -> str:
        return await self._input.read(first_frame=on_first_frame)

    async def _accept_input(self, text: str) -> None:
        try:
            if found := self._commands.parse(text):
                command, argument = found
                if said := await command.run(self, argument):
                    self._renderer.line(said)
                return
        except UserError as error:
            self._renderer.line(str(error), "red")
            return
        await self._run_turn(text)

    async def _run_turn(self, text: str) -> None:
        """Show one turn until it ends; Ctrl-C interrupts it."""
        session = self.session
        loop = asyncio.get_running_loop()
        events = session.subscribe()

        def interrupt() -> None:
            self._renderer.key_was_echoed()  # the terminal itself has written ^C
            session.submit(Interrupt())

        loop.add_signal_handler(signal.SIGINT, interrupt)
        session.submit(Prompt(self._attach(text, session)))
        try:
            async for event in events:
                if isinstance(event, ApprovalRequested):
                    session.submit(await approval.ask(event, self._renderer, self._input.ask))
                    loop.add_signal_handler(signal.SIGINT, interrupt)
                    continue
                self._renderer.show(event)
                if isinstance(event, Done | TurnFailed):
                    return
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await events.aclose()
