"""What a terminal session needs from the rest of the program; imported while the input is on the screen already."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from agentcli.agent.commands.conversation import conversation_commands
from agentcli.agent.commands.user_commands import add_user_commands
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.cli.house import ConfiguredHouse
from agentcli.cli.interactive import banner
from agentcli.cli.one_shot import extras_from, make_store, session_choice
from agentcli.config import Config
from agentcli.conversation.system_prompt import git_branch
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.app import Look, TerminalApp
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.desk import Front
from agentcli.frontends.terminal.drafts import drafts_of
from agentcli.frontends.terminal.file_index import FileIndex, ripgrep_files
from agentcli.frontends.terminal.history import ProjectHistory
from agentcli.frontends.terminal.plain import PlainTerminal
from agentcli.model_choice import KEYED_MODELS, NoModel
from agentcli.paths import folder_text, project_root


def open_live(console: Console, config: Config, options: argparse.Namespace, prompt: str | None) -> TerminalApp:
    """Put a session on the console."""
    terminal = config.settings.terminal
    project = folder_text(project_root(config.cwd))
    keeps = not options.no_session
    history = ProjectHistory(config.paths.state / "history" if keeps else None, project)
    house = TerminalHouse(config, options)
    app = TerminalApp(
        console,
        house,
        conversation_commands(),
        look=Look(
            terminal.keys.by_action(),
            terminal.theme,
            terminal.themes,
            terminal.wrap,
            terminal.notifications,
            terminal.status_command,
        ),
        history=history,
        drafts=drafts_of(config.paths.state / "drafts", config.cwd) if keeps else None,
        file_index=FileIndex(lambda: ripgrep_files(config.cwd)),
        folder=config.cwd,
        home=Path.home(),
    )
    house.tell = app.tell
    app.on_close = house.aclose
    add_user_commands(app.desk.commands, config.command_folders, house.tell)
    app.start(prompt)
    return app


async def open_plain(config: Config, options: argparse.Namespace, prompt: str | None, banner: Sequence[str]) -> int:
    house = TerminalHouse(config, options)
    commands = conversation_commands()
    add_user_commands(commands, config.command_folders, house.tell)
    terminal = PlainTerminal(house, commands, stdin=sys.stdin.fileno(), out=sys.stdout, banner=banner)
    try:
        return await terminal.run(prompt)
    finally:
        await house.aclose()


class TerminalHouse(ConfiguredHouse):
    """Opens sessions for a terminal. Implements the desk's `House`."""

    def __init__(self, config: Config, options: argparse.Namespace) -> None:
        self._config, self._options = config, options
        super().__init__(config, self._new_builder())
        self._warming: asyncio.Task[None] | None = None
        self._root = project_root(config.cwd)
        # A live screen has its own way.
        self.tell: Callable[[str], None] = lambda text: print(printable(text), file=sys.stderr)

    def _new_builder(self) -> Builder:
        def on_notice(text: str) -> None:
            self.tell(text)

        return Builder(
            self._config,
            store=make_store(self._config, self._options, on_notice),
            extras=extras_from(self._options),
            is_interactive=True,
            on_notice=on_notice,
        )

    async def first(self, front: Front) -> Session:
        choice = session_choice(self._options)
        model = ""
        while not model:
            try:
                model = await self._builder.models.default()
            except NoModel as missing:
                await self._set_up_model(front, missing)
        await asyncio.to_thread(self._builder.models.load, model)
        session = await self._builder.build_session(choice, model=model)
        self._warming = asyncio.create_task(self._builder.warm_up(session))
        await self._tell_of_sandbox(session)
        return session

    async def _tell_of_sandbox(self, session: Session) -> None:
        """Loudly where commands are held less than they could be; /sandbox shows all at any time."""
        if warning := await asyncio.to_thread(session.runtime.calls.workspace.sandbox.warning):
            self.tell(warning)

    async def _set_up_model(self, front: Front, missing: NoModel) -> None:
        """The guided choice of a first start. Raises `missing` when the person would rather leave."""
        chosen = await front.choose(
            "No model is set up. What shall answer?",
            [
                ("A key of mine", "for this session; in the environment it is there each time"),
                ("The built-in model", "downloads about 1.2 GB once, then runs on this machine"),
                ("Ollama or LM Studio", "start it with a model, then choose this to look again"),
                ("The tour", "a scripted model at work on a sample, nothing of yours is touched"),
                ("Leave", ""),
            ],
        )
        match chosen:
            case 0:
                await self._take_key(front, missing)
            case 1:
                await front.run_outside([sys.executable, "-m", "agentcli", "local", "install"])
            case 2:
                pass  # the caller looks again
            case 3:
                await front.run_outside([sys.executable, "-m", "agentcli", "demo"])
            case _:
                raise missing

    async def _take_key(self, front: Front, missing: NoModel) -> None:
        kinds = [(variable, model) for variable, model in KEYED_MODELS if variable.endswith("_API_KEY")]
        chosen = await front.choose("A key for", [(model.partition("/")[0], variable) for variable, model in kinds])
        if chosen is None:
            return
        variable = kinds[chosen][0]
        key = await front.ask_secret(f"Paste the key. It is kept for this session only; for good: export {variable}=…")
        if not key:
            raise missing
        before = self._builder
        self._config = msgspec.structs.replace(self._config, environment={**self._config.environment, variable: key})
        self._builder = self._new_builder()
        await before.aclose()

    def models(self) -> Sequence[tuple[str, str]]:
        table = self._builder.models.table()
        return [(f"{info.provider}/{info.id}", f"{info.window:,} tokens") for info in table]

    def window(self, model: str) -> int:
        return self._builder.models.info(model).window

    @property
    def project(self) -> str:
        return self._root.name or "/"

    def introduction(self) -> tuple[str, Sequence[str]]:
        """The program with where it runs, and the instruction files it has read there."""
        files = (str(file) for file, _ in self._builder.instructions().files)
        return " · ".join(banner(self._config)), [file.removeprefix(f"{self._root}/") for file in files]

    def branch(self) -> str:
        return git_branch(self._root) or ""

    async def aclose(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        await self._builder.aclose()
