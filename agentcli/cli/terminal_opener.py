"""Opens sessions for the terminal and helps to set up a model and keys; imported once the input is on the screen."""

import argparse
import asyncio
import io
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from agentcli.agent.commands.command import CommandHost, CommandSet, SlashCommand
from agentcli.agent.commands.session import PROGRAM
from agentcli.agent.interfaces import ONE_SHOTS
from agentcli.agent.ops import SetEffort, SetMode
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.cli.options import config_for
from agentcli.cli.output import banner
from agentcli.cli.session_opener import ConfiguredOpener, make_store, session_choice, session_options
from agentcli.conversation.conversation import Conversation
from agentcli.errors import NoKey, NoModel, UsageError, UserError
from agentcli.frontends.hosts import OpenSession
from agentcli.frontends.http.server import import_server
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.app import TerminalApp
from agentcli.frontends.terminal.composer import InputContext
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.input.completion import FileIndex, ripgrep_files
from agentcli.frontends.terminal.input.typed_text import ProjectHistory, drafts_of
from agentcli.frontends.terminal.plain import PlainTerminal
from agentcli.frontends.terminal.status import TerminalActions
from agentcli.llm.provider import Health
from agentcli.models.choice import KEYED_MODELS
from agentcli.settings.files import folder_text, project_root
from agentcli.settings.load import Config
from agentcli.setup.options import SessionChoice

if TYPE_CHECKING:
    from agentcli.frontends.http.shared import Remote


def open_live(console: Console, config: Config, options: argparse.Namespace, prompt: str | None) -> TerminalApp:
    """Connect the live screen that is already shown to a new opener, and start the session that the flags ask for."""
    state, is_stored = config.paths.state, not options.no_session
    takes_old_draft = prompt is None and session_choice(options).how == "new"  # what an earlier start left unsent
    drafts = drafts_of(state / "drafts", config.cwd, takes_old_draft=takes_old_draft) if is_stored else None
    opener, notices = ConfiguredTerminalOpener(config, options), list[str]()
    app = TerminalApp(
        console,
        opener,
        opener.commands(notices.append),
        settings=config.settings.terminal,
        context=InputContext(
            folder=config.cwd,
            files=FileIndex(lambda: ripgrep_files(config.cwd)),
            history=ProjectHistory(state / "history" if is_stored else None, folder_text(project_root(config.cwd))),
            drafts=drafts,
        ),
    )
    opener.on_notice, opener.on_prompt = app.show_warning, app.show_prompt
    for notice in notices:
        app.show_warning(notice)
    app.start(prompt)
    return app


async def open_plain(config: Config, options: argparse.Namespace, prompt: str | None, banner: Sequence[str]) -> int:
    opener = ConfiguredTerminalOpener(config, options)
    commands = opener.commands(opener.on_notice)
    terminal = PlainTerminal(opener, commands, stdin=sys.stdin.fileno(), out=sys.stdout, banner=banner)
    try:
        return await terminal.run(prompt)
    finally:
        await opener.aclose()


class Login(msgspec.Struct, frozen=True):
    provider: str
    message: str  # the result of the test, and where the key is used or stored
    models: tuple[str, ...]  # of the provider, as its server lists them
    is_stored: bool


class ConfiguredTerminalOpener(ConfiguredOpener):
    """Opens sessions for a terminal. Implements `TerminalOpener`."""

    def __init__(self, config: Config, options: argparse.Namespace) -> None:
        self._options = options
        # A live screen replaces these two later, so other objects get `notify` and `show_prompt`, which call them.
        self.on_notice: Callable[[str], None] = lambda text: print(printable(text), file=sys.stderr)
        self.on_prompt: Callable[[str], None] = lambda text: print(f"> {printable(text)}")
        self.store = make_store(config, options, self.notify)
        super().__init__(config, self._make_builder(config))
        self._warming: asyncio.Task[None] | None = None
        self._remote = RemoteCommand(self)
        self.root = project_root(config.cwd)

    def _make_builder(self, config: Config) -> Builder:
        return Builder(
            config,
            store=self.store,
            options=session_options(self._options),
            is_interactive=True,
            resumes_answers=True,
            owns_store=False,  # it outlives the builder: `reload` makes another one for the same store
            on_notice=self.notify,
        )

    def commands(self, on_notice: Callable[[str], None]) -> CommandSet:
        commands = super().commands(on_notice)
        commands.add(self._remote.command)
        return commands

    def notify(self, text: str) -> None:
        self.on_notice(text)

    def show_prompt(self, text: str) -> None:
        self.on_prompt(text)

    async def open_first(self, terminal: TerminalActions) -> Session:
        """Open the session that the flags ask for. Without a model or key, the person is asked to set one up first."""
        choice, models = await self._find_newest(session_choice(self._options)), self.models
        model, notice = await self._prepare_resume(choice)  # "" if no stored session says which model it uses
        try:
            model = model or await models.default()
        except NoModel as missing:
            model = await self._set_up_model(terminal, missing)
        try:
            models.require_key(model)
        except NoKey as missing:  # the session opens without a key too: it can be read, and /model switches the model
            self.on_notice(await self.ask_key(terminal, missing.provider) or str(missing))
        if not model.startswith("local/"):  # creating the local provider would show a message
            await asyncio.to_thread(models.provider, model)  # imports its modules while nobody waits for an answer
        session = await self._builder.build_session(choice, model=model)
        if notice:  # not before, because opening fails if another agentcli has the session
            self.on_notice(notice)
        self._warming = asyncio.create_task(self._builder.warm_up(session))  # while the person types
        if warning := await asyncio.to_thread(lambda: session.snapshot().workspace.facts.warning):
            self.on_notice(warning)  # commands are confined less than they could be; /sandbox shows this at any time
        return session

    async def open(self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False) -> Session:
        """Open a session; a stored one keeps its own model if that can be used, but a fork of it gets `model`."""
        choice = SessionChoice(how="id", id=session_id) if session_id and not fork else SessionChoice()
        session_model, notice = await self._prepare_resume(choice)
        opened = await super().open(session_id, model=session_model or model, fork=fork, take_over=take_over)
        if notice:
            self.on_notice(notice)
        await self._close_remote_page()
        return opened

    async def _close_remote_page(self) -> None:
        if await self._remote.aclose():
            self.on_notice("The page of the previous session is closed. To open one for this session: /remote")

    async def _find_newest(self, choice: SessionChoice) -> SessionChoice:
        """Replace the choice "newest" by the id of the newest conversation, or else of the newest one-shot."""
        if choice.how == "newest":
            for user_id in ("", None):  # "" leaves out one-shots, None does not
                if newest := await self.stored_sessions.list(cwd=self._config.cwd, limit=1, user_id=user_id):
                    return msgspec.structs.replace(choice, how="id", id=newest[0].id)
        return choice

    async def _prepare_resume(self, choice: SessionChoice) -> tuple[str, str]:
        """Return the model for a stored session (its own, or the default if that is unusable) and a notice about it."""
        if not choice.id:  # a new session
            return "", ""
        info, entries = await self.stored_sessions.load(choice.id)
        if info.user_id == ONE_SHOTS and not choice.fork:  # it becomes a conversation, because a person continues it
            await self.store.mark_one_shot(info.id, is_one_shot=False)
        if not (session_model := self._builder.model_of(Conversation(entries))):
            return "", ""
        try:
            await asyncio.to_thread(self.check_model, session_model)  # in a thread, because it imports the provider
        except UserError as error:
            with suppress(UserError):  # if no other model can be used either, the person is asked for a key
                default = await self.models.default()
                self.check_model(default)
                why = f"{session_model}, which this session used, cannot be used: {error}"
                return default, f"{default} answers now. {why}"
        is_usual = session_model == self._config.settings.provider.model
        return session_model, "" if is_usual else f"Resuming with {session_model}. To switch: /model"

    async def _set_up_model(self, terminal: TerminalActions, missing: NoModel) -> str:
        """Let the person connect a model at the first start, and return its name. Raises `missing` if they quit."""
        has_engine = find_spec("xllamacpp") is not None
        built_in = "1.2 GB once, then it runs on this machine" if has_engine else "needs its engine first, then 1.2 GB"
        options = (
            ("Enter an API key", "of Anthropic, OpenAI, OpenRouter or another"),
            ("Install the built-in model", built_in),
            ("Use Ollama or LM Studio", "start it with a model, then choose this"),
            ("Take the tour", "a scripted model works on a sample"),
            ("Quit", ""),
        )
        question, chosen = "How do you want to connect a model?", None  # the index of the option chosen last
        while True:
            chosen = await terminal.choose(question, options, current=chosen, is_startup=True)
            if chosen is None or options[chosen][0] == "Quit":
                raise missing
            try:
                match options[chosen][0]:
                    case "Enter an API key":
                        if name := await self._set_up_key(terminal):
                            return name
                    case "Install the built-in model" if not has_engine:
                        how = "pip install 'agentcli[local]', or ./install.sh --extras local in agentcli's own folder"
                        self.on_notice(f"The built-in model needs its engine first: {how}")
                    case "Install the built-in model":
                        await terminal.run_with_terminal([sys.executable, "-m", "agentcli", "local", "install"])
                    case "Use Ollama or LM Studio":
                        if not await self.models.local_models():
                            self.on_notice("No running model found in Ollama or LM Studio. Start one, then try again.")
                    case "Take the tour":
                        await terminal.run_with_terminal([sys.executable, "-m", "agentcli", "demo"])
            except UserError as error:
                self.on_notice(str(error))
            with suppress(NoModel):  # no model yet: the list opens again
                return await self.models.default()

    async def _set_up_key(self, terminal: TerminalActions) -> str:
        """Ask for a key, and return the provider's usual model or one that the person chooses; "" if they cancel."""
        login = await self._log_in(terminal, "")
        if login is None:
            return ""
        self.on_notice(login.message)
        if not (model := self.models.usual_model(login.provider)):
            if not login.models:
                return ""
            chosen = await terminal.choose("Which model do you want to use?", [(name, "") for name in login.models])
            if chosen is None:
                return ""
            model = f"{login.provider}/{login.models[chosen]}"
        is_chosen_by_key = model in dict(KEYED_MODELS).values()  # then later starts find it without a setting
        if login.is_stored and not is_chosen_by_key:
            self.on_notice(f"{model}: {await asyncio.to_thread(self.store_setting, 'provider.model', model)}")
        return model

    async def ask_key(self, terminal: TerminalActions, provider: str = "") -> str:
        login = await self._log_in(terminal, provider)
        return login.message if login else ""

    async def _log_in(self, terminal: TerminalActions, provider: str) -> Login | None:
        """Ask for a key until one works or the person uses one anyway; return None if they cancel."""
        models = self.models
        providers = models.keys.providers_that_take_keys()
        if not provider:
            places = [f"{models.keys.variables(name)[0]} {models.keys.place(name)}".strip() for name in providers]
            chosen = await terminal.choose("Which provider?", list(zip(providers, places, strict=True)))
            if chosen is None:
                return None
            provider = providers[chosen]
        elif provider not in providers:
            raise UsageError(f"{provider} uses no API key. Providers that do: {', '.join(providers)}.")
        question = f"Paste your API key for {provider}. agentcli tests it once, at no cost."
        rejected, use_now = "", ("Use it in this session only", "")  # `rejected`: the key that failed last
        while key := await terminal.ask_secret(question):
            health = await models.try_key(provider, key)
            if health.ok:
                choices = [("Save it", "in the keyring, or in a file only you can read"), use_now]
                is_stored = await terminal.choose(f"{health.detail}.", choices) == 0
                return await self._use_key(provider, key, health, is_stored=is_stored)
            self.on_notice(health.detail)
            if health.is_reached and key != rejected:  # ask again first: in a list, a pasted key would be visible
                rejected = key
                question = "This key does not work. Paste another, or this one again to use it anyway."
                continue
            title = "This key does not work"
            if not health.is_reached:
                title = f"{provider} could not be reached, so the key was not tested"
            choices = [("Try again", "with this key or another"), ("Save it anyway", ""), use_now]
            if chosen := await terminal.choose(title, choices):  # neither cancelled nor "Try again"
                return await self._use_key(provider, key, health, is_stored=chosen == 1)
        return None

    async def _use_key(self, provider: str, key: str, health: Health, *, is_stored: bool) -> Login:
        """Use a key from now on, and store it if `is_stored`. `health` is the result of the test."""
        variable = self.models.keys.variables(provider)[0]
        self._config.stored_keys.typed[variable] = key
        self.models.forget(provider)
        message = f"This session uses the key for {provider}."
        if is_stored:
            message = await asyncio.to_thread(self.models.keys.store, provider, variable, key)
        # The person has already seen the detail of a test that failed.
        return Login(provider, f"{health.detail}.\n{message}" if health.ok else message, health.models, is_stored)

    def review_project(self) -> tuple[str, Callable[[], str]] | str:
        from agentcli.cli.subcommands.config import NOTHING_TO_TRUST, review_project, trust_reviewed  # imports typer

        notices = list[str]()
        if (review := review_project(self._config, notices.append)) is None:
            return "\n".join((*notices, NOTHING_TO_TRUST))
        return "\n".join((*notices, review.text)), partial(trust_reviewed, self._config, review)

    async def reload(self, before: Session) -> Session:
        """Load the settings again, and return `before` opened again with them. Raises `UserError` for mistakes."""
        config = await asyncio.to_thread(config_for, self._options, self._config.cwd)
        builder, old = self._make_builder(config), before.snapshot()
        # Each of these raises an error for mistakes in the settings, so that the old session stays open.
        _ = builder.tool_registry(), builder.rules(), builder.hooks.specs
        for notice in config.notices:
            self.notify(notice)
        await before.close()
        await self._close_remote_page()
        await self._builder.aclose()
        super().__init__(config, builder)
        choice = SessionChoice(how="id", id=before.id) if old.conversation.entries else SessionChoice()
        session = await builder.build_session(choice, model=old.model)
        session.submit(SetMode(old.mode))
        session.submit(SetEffort(old.effort))
        return session

    def read_config(self) -> Config:
        """Load the settings again: some may have been stored since the start, as by `/model NAME keep`."""
        config = config_for(self._options, self._config.cwd)
        return msgspec.structs.replace(config, stored_keys=self._config.stored_keys)  # has keys typed in this session

    def forget_key(self, provider: str) -> str:
        message = self.models.keys.remove(provider, self.models.keys.variables(provider))
        self.models.forget(provider)
        return message

    def introduction(self) -> tuple[str, Sequence[str]]:
        """Return a line with the program and its folder, and the instruction files that were read."""
        files = (str(file) for file, _ in self._builder.prefixes.instructions().files)
        return " · ".join(banner(self._config)), [file.removeprefix(f"{self.root}/") for file in files]

    async def aclose(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        await self._remote.aclose()
        await self._builder.aclose()
        await self.stored_sessions.close()


class RemoteCommand:
    """Opens and closes the page of the terminal's session; there is one page at a time."""

    LOOPBACK = "127.0.0.1"

    def __init__(self, opener: ConfiguredTerminalOpener) -> None:
        self._opener = opener
        self._remote: Remote | None = None
        self._lock = asyncio.Lock()  # two commands at once could leave a page that nobody can close
        about = "show this session on a web page"
        self.command = SlashCommand("remote", about, self._run, "[lan|ADDRESS|off]", is_parallel=True, group=PROGRAM)

    async def _run(self, host: CommandHost, argument: str) -> str:
        async with self._lock:
            if argument == "off":
                return "The page is closed." if await self.aclose() else "This session has no page."
            address = await asyncio.to_thread(_lan_address) if argument == "lan" else argument or self.LOOPBACK
            link = (await self._serve(host, address)).new_link()
        about = "Open it in a browser. The link works once. /remote makes a new one, /remote off closes the page."
        if address == self.LOOPBACK:
            return f"{link}\n{about}\nFor a phone in the same network: /remote lan"
        import segno  # part of the same extra as the server

        qr_code = io.StringIO()
        segno.make(link, error="l").terminal(qr_code, border=2, compact=True)
        more = "It is plain HTTP: whoever reads this network's traffic can read and steer the session."
        return f"{qr_code.getvalue()}{link}\n{about}\n{more}"

    async def _serve(self, host: CommandHost, address: str) -> "Remote":
        """Serve the open session at an address of this machine, and return the page. Raises `UserError`."""
        session, opener, open_page = host.session, self._opener, self._remote
        if open_page is not None and (open_page.session_id, open_page.address) == (session.id, address):
            return open_page
        await self.aclose()
        await asyncio.to_thread(import_server)
        from agentcli.frontends.http.shared import Remote
        from agentcli.infra.event_log import MemoryEvents

        commands = ConfiguredOpener.commands(opener, opener.notify)  # without `/remote` itself
        # Closing the page does not close the session: the terminal does that.
        opened = OpenSession(session, opener, commands, lambda: asyncio.sleep(0))
        remote = Remote(opened, opener.store, MemoryEvents(), on_notice=opener.notify, on_prompt=opener.show_prompt)
        await remote.start(address)
        self._remote = remote
        return remote

    async def aclose(self) -> bool:
        """End the page; return False if there is none."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.aclose()
        return remote is not None


def _lan_address() -> str:
    """Return this machine's address in its local network: the one that it would send from. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
        return str(probe.getsockname()[0])
    raise UserError("This machine has no address in a network. Name one: /remote ADDRESS")
