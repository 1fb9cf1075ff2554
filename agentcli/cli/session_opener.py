"""Opens sessions as flags and settings specify: for clients, for the terminal, and for one answer (`agentcli -p`)."""

import argparse
import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentcli.agent.commands.command import CommandSet, Topic
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.ops import SetMode
from agentcli.agent.result import INTERRUPTED_EXIT, AnswerSchema, Requirements, ResultBuilder
from agentcli.agent.session import Session
from agentcli.agent.steps.messages import set_answer_schema
from agentcli.app import Builder
from agentcli.cli import claude_code_flags
from agentcli.cli.main import Ending
from agentcli.cli.options import config_for, read_text_file, text_or_file
from agentcli.cli.output import warn
from agentcli.conversation.mentions import missing_files_notice, with_attachments
from agentcli.errors import UsageError, UserError
from agentcli.frontends.hosts import CliPrompt, OpenRequest, OpenSession, ScreenlessHost, UsageStore
from agentcli.frontends.run_end import end_when_idle, ended_jobs_notice, interrupt_on_signals
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
from agentcli.llm.messages import Block
from agentcli.llm.models import ModelInfo
from agentcli.models.choice import EMBEDDED
from agentcli.settings.load import Config
from agentcli.settings.trust import SKILL_FILE, project_files
from agentcli.setup.options import AddedDefinitions, McpOptions, SessionChoice, SessionOptions

if TYPE_CHECKING:
    from agentcli.cli.input_stream import InputStream


class ConfiguredOpener:
    """Opens sessions with one configuration and one builder. Implements `SessionOpener`."""

    def __init__(self, config: Config, builder: Builder, *, answer_schema: AnswerSchema | None = None) -> None:
        self._config = config
        self._builder = builder
        self._answer_schema = answer_schema
        self.models = builder.models
        self.model_info = builder.models.info
        self.stored_sessions = builder.store
        self.shows_claims = config.settings.evidence.show

    async def open(self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False) -> Session:
        how: Literal["id", "new"] = "id" if session_id else "new"
        choice = SessionChoice(how=how, id=session_id or "", fork=fork, take_over=take_over)
        session = await self._builder.build_session(choice, model=model)
        set_answer_schema(session.runtime.steps, self._answer_schema)
        return session

    async def list(self) -> Sequence[SessionInfo]:
        return await self.stored_sessions.list(cwd=self._config.cwd, user_id="")  # one-shots and subagents have ids

    def check_model(self, name: str) -> str:
        info = self.models.info(name)
        self.models.require_key(name)
        self.models.provider(name)
        caution = "" if info.is_known else " This model is not in the table, so its window and price are guesses."
        return f"Starting with the next request: {info.name}, window {info.window:,} tokens.{caution}"

    async def list_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        here = [(name, "on this machine") for name in await self.models.local_models()]
        if self.models.embedded_path().is_file():
            here.append((EMBEDDED, "on this machine"))
        known = await asyncio.to_thread(self.known_models, with_key=with_key)
        return [*here, *(row for row in known if not row[0].startswith("local/"))]

    def known_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        """Return known models with their facts in columns, usable ones first; `with_key`: only those with a key."""
        infos, keys = list(self.models.table()), self.models.keys
        is_usable = {provider: keys.can_use(provider) for provider in {info.provider for info in infos}}
        if with_key:  # `variables` is empty for a provider that is usable without a key
            infos = [info for info in infos if is_usable[info.provider] and keys.variables(info.provider)]
        infos.sort(key=lambda info: not is_usable[info.provider])
        return [(info.name, _in_columns(info, has_key=is_usable[info.provider])) for info in infos]

    def commands(self, on_notice: Callable[[str], None]) -> CommandSet:
        """Return all slash commands; agentcli's own keep their names."""
        from agentcli.agent.commands.session import conversation_commands  # a one-shot run seldom needs them

        commands = conversation_commands()
        commands.explain_missing = self._explain_untrusted
        self.add_commands(commands, on_notice)
        return commands

    def add_commands(self, commands: CommandSet, on_notice: Callable[[str], None]) -> None:
        from agentcli.extensions.mcp.servers import add_mcp_commands
        from agentcli.extensions.output_styles import style_command
        from agentcli.extensions.slash_commands import add_agent_commands, add_plugin_command, add_skill_commands
        from agentcli.extensions.user_commands import add_user_commands

        commands.add(style_command(self._config))
        add_user_commands(commands, self._config.command_folders, on_notice, self._builder.plugins.active)
        add_plugin_command(commands, self._builder.plugins)
        add_skill_commands(commands, self._builder.skills.catalog)
        add_mcp_commands(commands, self._builder.servers)
        if self._config.settings.agents.enabled:
            add_agent_commands(commands, self._builder.agents.definitions.values())

    def _explain_untrusted(self, name: str) -> str:
        """Explain that an untrusted project defines the command, skill or subagent `name`; empty if it does not."""
        if self._config.project.is_allowed:
            return ""
        files = [file for file in project_files(self._config.cwd) if file.suffix == ".md"]
        names = {file.parent.name if file.name == SKILL_FILE else file.stem for file in files}
        _, _, last_part = name.rpartition(":")  # a command in a folder is called FOLDER:COMMAND
        how = "To review and trust it: /trust, or `agentcli config trust`"
        return f"This project defines /{name}, but is not trusted. {how}" if last_part in names else ""

    def store_setting(self, key: str, value: Any) -> str:
        from agentcli.settings.write import store_setting

        return store_setting(self._config, key, value)

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        snapshot = session.snapshot()
        is_small = False
        with suppress(UserError):  # a model that does not exist fails later, when the prompt is sent
            is_small = self.models.info(snapshot.model).small
        # A small model seldom reads files by itself, so it also gets those that are named without an @.
        return with_attachments(text, snapshot.workspace, bare_names=is_small, typed=typed)

    def read_config(self) -> Config:
        return self._config

    def describe(self, topic: Topic) -> str:
        """Return the text that `/config`, `/hooks` or `/doctor` shows."""
        config = self.read_config()
        if topic == "config":
            from agentcli.safety.secrets.masking import mask
            from agentcli.settings.write import readable_settings

            head = [f"# {line}\n" for line in (*config.files, *self.models.keys.describe_all())]
            return "".join(head) + mask(readable_settings(config.settings))
        if topic == "hooks":
            from agentcli.extensions.subcommands import describe_hooks

            return describe_hooks(config)
        from agentcli.cli.subcommands.doctor import examine, format_findings  # the topic is "doctor"

        return format_findings(list(examine(config)))


def _in_columns(info: ModelInfo, *, has_key: bool) -> str:
    prices = f"${info.prices.input:g} in, ${info.prices.output:g} out" if info.prices else ""
    window = f"{info.window // 1_000_000}M" if info.window % 1_000_000 == 0 else f"{info.window // 1_000}k"
    return f"{'✓ key' if has_key else 'no key':<6}  {window:>5}  {prices}".rstrip()


async def open_for_client(
    options: argparse.Namespace,
    store: UsageStore,
    request: OpenRequest,
    *,
    is_server: bool,
    on_notice: Callable[[str], None],
) -> OpenSession:
    """Open a session for an editor or for a client of the server. Raises `UserError`.

    To reopen a stored session, the server requests the model in the session's newest note. If that model can no longer
    be used, the session continues with the default model.
    """
    editor, how = request.editor, request.how
    config = await asyncio.to_thread(config_for, options, request.cwd, editor.folders)
    for notice in config.notices:
        on_notice(notice)
    by_flags = session_options(options)
    options_for_client = msgspec.structs.replace(
        by_flags,
        accepts_client_tools=is_server,
        mcp=msgspec.structs.replace(by_flags.mcp, servers={**by_flags.mcp.servers, **editor.servers}),
        client_files=editor.files,
    )
    builder = Builder(
        config,
        store=store,
        options=options_for_client,
        can_ask=True,
        resumes_answers=True,
        owns_store=False,
        on_notice=on_notice,
    )
    opener, model = ConfiguredOpener(config, builder), request.model
    choice = SessionChoice(user_id=request.user_id, name=request.name)
    if request.id:
        choice = SessionChoice(how="id", id=request.id, fork=how == "fork", take_over=how == "take_over")
    try:
        try:
            if model:
                opener.check_model(model)
        except UserError as error:
            if not request.id:
                raise
            on_notice(f"session {request.id} continues with another model: {error}")
            model = ""
        # Without a usable noted model, a server's session gets the default; an editor's keeps the conversation's model.
        if is_server and request.id and not model:
            model = await builder.models.default()
        session = await builder.build_session(choice, model=model)
        commands = opener.commands(on_notice)
    except BaseException:  # also if it is cancelled
        await builder.aclose()
        raise
    if request.mode:
        session.submit(SetMode(request.mode))
    return OpenSession(session, opener, commands, builder.aclose)


def make_store(config: Config, options: argparse.Namespace, on_notice: Callable[[str], None]) -> UsageStore:
    return MemorySessions() if options.no_session else SqliteSessions(config.paths.sessions, on_notice=on_notice)


def session_options(options: argparse.Namespace) -> SessionOptions:
    appended = options.append_system_prompt, options.append_system_prompt_file
    sources = claude_code_flags.setting_sources(options.setting_sources)
    files, servers = claude_code_flags.servers_and_files(options.mcp_config)
    agents = claude_code_flags.agent_definitions(options.agents)
    return SessionOptions(
        system_prompt=text_or_file("--system-prompt", options.system_prompt, options.system_prompt_file),
        append_system_prompt=text_or_file("--append-system-prompt", *appended) or "",
        is_bare=options.bare or sources == frozenset(),  # `--setting-sources ""` excludes all
        accepts_client_tools=options.input_format == "stream-json",
        added=AddedDefinitions(plugin_folders=tuple(options.plugin_dir), agents=agents),
        mcp=McpOptions(files, servers, options.strict_mcp_config, tuple(options.hosted_servers)),
    )


def session_choice(options: argparse.Namespace) -> SessionChoice:
    """Return the session that the flags ask for. Raises `UsageError` for flags that cannot be combined."""
    resumes, forks, new_id = options.continue_ or options.resume, options.fork_session, options.session_id
    _reject(
        (options.continue_ and options.resume is not None, "Use either --continue or --resume, not both."),
        (forks and not resumes, "--fork-session needs --continue or --resume."),
        (new_id and resumes and not forks, "--session-id is for new sessions. Leave it out, or add --fork-session."),
        (options.no_session and resumes, "--no-session stores nothing, so there is nothing to continue."),
        (options.resume_session_at and not resumes, "--resume-session-at needs --continue or --resume."),
        (options.take_over and (forks or not resumes), "--take-over works only with --continue or --resume."),
    )
    if new_id is not None:
        try:
            new_id = str(uuid.UUID(new_id))
        except ValueError as error:
            raise UsageError(f"--session-id must be a UUID, not {new_id!r}.") from error
    return SessionChoice(
        how="newest" if options.continue_ else "id" if options.resume else "new",
        id=options.resume or "",
        fork=forks,
        new_id=new_id,
        name=options.name,
        take_over=options.take_over,
        at=options.resume_session_at or "",
    )


def _reject(*problems: tuple[object, str]) -> None:
    """Raise `UsageError` with the text of the first problem whose condition is true."""
    for is_wrong, text in problems:
        if is_wrong:
            raise UsageError(text)


async def answer_once(config: Config, options: argparse.Namespace, prompt: str, ending: Ending) -> int:
    """Answer a prompt, or those on stdin; return the exit code. Raises `UserError` if no session can be opened."""
    takes_stream, writes_stream = options.input_format == "stream-json", options.output_format == "stream-json"
    _reject(
        (options.resume == "", "--resume needs an ID here. To list the sessions: agentcli sessions list"),
        (takes_stream and not writes_stream, "--input-format stream-json needs --output-format stream-json."),
    )
    if not takes_stream:
        return await _answer_in_session(config, options, prompt, ending)
    from agentcli.cli.input_stream import open_stream, stream_of
    from agentcli.frontends.json_stream import ControlRequested

    stream = await open_stream(options, config)
    while True:
        try:
            # A copy: if the session is opened again, the values that `--agent` sets must not look like the person's.
            return await _answer_in_session(config, copy(options), prompt, ending, stream=stream)
        except ControlRequested as late:  # an Agent SDK's first line came too late: open the session again with it
            stream.lines.put_back(late.line)
            stream = stream_of(stream.lines, late.line, options, config)
        except UserError as error:
            if stream.client is not None:
                stream.client.channel.respond_with_error(stream.client.first_id, str(error))
            raise


async def _answer_in_session(
    config: Config, options: argparse.Namespace, prompt: str, ending: Ending, *, stream: "InputStream | None" = None
) -> int:
    """Answer a prompt, or the prompts of a stream, in a session; return the exit code. Raises `UserError`."""
    config = claude_code_flags.apply_agent(options, config)
    takes_stream, client = stream is not None, stream.client if stream else None
    choice, store = session_choice(options), make_store(config, options, warn)
    if client is not None and client.transcripts is not None and choice.id:
        from agentcli.frontends.agent_sdk.transcripts import import_missing

        # The SDK may keep transcripts of sessions on another machine, which are not in the store here.
        await import_missing(store, choice.id, client.transcripts, config.cwd)
    answer_schema = None if options.json_schema is None else _read_answer_schema(options.json_schema)
    ending.session_id = choice.new_id or choice.id
    builder = Builder(
        config,
        store=store,
        options=session_options(options),
        resumes_answers=not takes_stream,
        on_notice=warn,
        can_ask=takes_stream and (client is None or client.answers_questions),
    )
    try:
        typed = "" if options.prompt in (None, "-") else options.prompt  # without what was piped into stdin
        is_command = typed.lstrip().startswith("/")  # a command may work without a model
        session = await builder.build_session(choice)
        if choice.how == "new" or choice.fork:  # a conversation that is continued does not become a one-shot
            await store.mark_one_shot(session.id, is_one_shot=True)
        set_answer_schema(session.runtime.steps, answer_schema)
        ending.unfinished_result = ResultBuilder(session).unfinished
        opener = ConfiguredOpener(config, builder, answer_schema=answer_schema)
        commands = opener.commands(warn) if is_command or options.output_format == "stream-json" else CommandSet(())
        host = ScreenlessHost(opener, session, commands, stays_open=takes_stream)
        if not is_command and (notice := missing_files_notice(typed, session.snapshot().workspace.cwd)):
            warn(notice)
        leaving = asyncio.Event()

        def leave() -> None:  # at the first signal; the second one ends the process at once
            leaving.set()
            host.interrupt()

        with interrupt_on_signals(leave, at_once=ending.exit_at_once) as received:
            idle_s = config.settings.limits.idle_s
            idle_watch = asyncio.create_task(end_when_idle(lambda: host.session, idle_s, ending.exit_stuck))
            try:
                if choice.how != "new" and not takes_stream and not is_command:
                    builder.models.require_key(session.state.model.name)  # the stored model may have no key here
                required = Requirements(options.fail_on_denial, options.require_evidence, answer_schema)
                cli_prompt = CliPrompt(typed, prompt.removeprefix(typed))
                code = await _run_front_end(host, cli_prompt, options, leaving, requirements=required, stream=stream)
                ending.has_answered = True
            finally:
                idle_watch.cancel()
                notice = ended_jobs_notice(host.session)
                await host.session.close()
                if notice:
                    warn(notice)
        return 128 + received["signal"] if received and code == INTERRUPTED_EXIT else code
    finally:
        await builder.aclose()


async def _run_front_end(
    host: ScreenlessHost,
    prompt: CliPrompt,
    options: argparse.Namespace,
    leaving: asyncio.Event,
    *,
    requirements: Requirements,
    stream: "InputStream | None",
) -> int:
    """Run the front end for `--output-format`, and return its exit code. A signal sets `leaving`."""
    if options.output_format == "stream-json":
        from agentcli.frontends.json_output import write_line
        from agentcli.frontends.json_stream import Dialogue

        make_dialogue: Callable[..., Dialogue] = partial(Dialogue, write=write_line)
        if stream is not None and stream.client is not None:
            from agentcli.frontends.agent_sdk.dialogue import ControlDialogue

            make_dialogue = partial(ControlDialogue, client=stream.client)
        dialogue = make_dialogue(
            host, streams=options.include_partial_messages, requirements=requirements, leaving=leaving
        )
        return await dialogue.run(prompt, stream.lines if stream else None)
    from agentcli.frontends import print_mode

    if options.output_format == "json":
        return await print_mode.print_json(host, prompt, requirements=requirements)
    return await print_mode.print_answer(host, prompt, verbose=options.verbose, requirements=requirements)


def _read_answer_schema(argument: str) -> AnswerSchema:
    """Read the schema of `--json-schema`, whose argument is JSON or the name of a file. Raises `UsageError`."""
    text = argument if argument.lstrip().startswith("{") else read_text_file(argument)
    try:
        return AnswerSchema(msgspec.json.decode(text, type=dict[str, Any]))
    except msgspec.MsgspecError as error:
        raise UsageError(f"--json-schema is not a JSON object ({error}).") from error
