"""The terminal session: what must be there for the prompt first, then everything a first answer needs."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.agent.commands.conversation import conversation_commands
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.session import Session
from agentcli.config import Config
from agentcli.frontends.terminal.app import TerminalApp
from agentcli.frontends.terminal.render import Renderer
from agentcli.frontends.terminal.theme import Theme, wants_colours
from agentcli.llm.messages import Block

if TYPE_CHECKING:
    from agentcli.app import Builder, SessionChoice


def open_terminal(config: Config, options: argparse.Namespace) -> int:
    return asyncio.run(_run(config, options))


async def _run(config: Config, options: argparse.Namespace) -> int:
    colours = wants_colours(config.environment, plain=options.plain, is_terminal=sys.stdout.isatty())
    theme = Theme(colours=colours)
    renderer = Renderer(sys.stdout, theme)
    opener = _Opener(config, options, renderer)
    app = TerminalApp(
        open_session=opener.open,
        list_sessions=opener.list,
        check_model=opener.check_model,
        attach=opener.attach,
        commands=conversation_commands(),
        theme=theme,
        renderer=renderer,
        history_file=None if options.no_session else config.paths.state / "history",
        banner=f"agentcli in {_short(config.cwd)} · /help · Ctrl-C interrupts, Ctrl-D leaves",
    )
    try:
        # `--resume` without an ID: the list to choose from is the first thing on the screen.
        return await app.run(opener.first, "/resume" if options.resume == "" else options.prompt)
    finally:
        await opener.aclose()


def _short(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


class _Opener:
    """Opens sessions for the terminal. What that needs is imported while the prompt is on the screen already."""

    def __init__(self, config: Config, options: argparse.Namespace, renderer: Renderer) -> None:
        self._config = config
        self._options = options
        self._renderer = renderer
        self._made: Builder | None = None
        self._model = ""
        self._warming: asyncio.Task[None] | None = None

    @property
    def _builder(self) -> Builder:
        if self._made is None:
            from agentcli.app import Builder  # 60 ms with the store, which the first frame does not wait for
            from agentcli.cli.one_shot import extras_from, make_store

            self._made = Builder(
                self._config,
                store=make_store(self._config, self._options, self._renderer.line),
                extras=extras_from(self._options),
                can_ask=True,
                on_notice=self._renderer.line,
            )
        return self._made

    async def first(self) -> Session:
        """The session the flags mean; the imports run in a thread, so that typing stays possible."""
        choose = await asyncio.to_thread(_session_choice)
        builder = self._builder
        self._model = model = await builder.models.default()
        await asyncio.to_thread(builder.models.load, model)
        gc.freeze()
        gc.enable()
        session = await builder.build_session(choose(self._options), model=model)
        self._warming = asyncio.create_task(builder.warm_up(session))
        return session

    async def open(self, session_id: str | None) -> Session:
        from agentcli.app import SessionChoice  # loaded by now

        choice = SessionChoice("id", session_id) if session_id else SessionChoice()
        return await self._builder.build_session(choice, model=self._model)

    async def list(self) -> Sequence[SessionInfo]:
        return await self._builder.store.list(cwd=self._config.cwd)

    def check_model(self, name: str) -> str:
        info = self._builder.models.info(name)
        self._builder.models.provider(name)
        self._model = name
        known = "" if info.is_known else " It is in no table: its window and price are guesses."
        return f"From the next request on: {name}, window {info.window:,} tokens.{known}"

    def attach(self, text: str, session: Session) -> tuple[Block, ...]:
        from agentcli.conversation.mentions import with_attachments  # loaded by now

        small = self._builder.models.info(session.state.model).small
        return with_attachments(text, session.runtime.calls.workspace, bare_names=small)

    async def aclose(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        if self._made is not None:
            await self._made.aclose()


def _session_choice() -> Callable[[argparse.Namespace], SessionChoice]:
    import agentcli.app  # noqa: F401 - 60 ms with the store; loaded here because this runs in a thread
    from agentcli.cli.one_shot import session_choice

    return session_choice
