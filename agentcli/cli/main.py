"""Runs the program: chooses the front end by the arguments, and ends with an exit code and, for JSON, a last result."""

import argparse
import asyncio
import gc
import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agentcli.cli.claude_code_flags import CLAUDE_CODE_FLAGS, apply_agent
from agentcli.cli.options import FLAGS, config_for, make_main_parser, read_stdin, stdin_is_piped
from agentcli.cli.output import LenientStderr, WatchedStdout, banner, set_up_logging, use_locale_encoding, warn
from agentcli.cli.subcommands import COMMANDS, run_command
from agentcli.errors import OUT_OF_MEMORY, AgentcliError, UsageError, UserError, is_out_of_memory, nearest
from agentcli.frontends.printable import printable
from agentcli.settings.files import current_folder, is_writable
from agentcli.settings.load import Config

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MIN_ADDRESS_SPACE = 128 * 1024 * 1024  # bytes; a session with a few calls takes some 90 MB


def run(arguments: list[str], signals: Sequence[int]) -> int:
    """Run the program, report errors, and return the exit code. `signals` are those that came during the imports."""
    use_locale_encoding()
    LenientStderr.install()
    try:
        out = WatchedStdout.install()
    except UsageError as error:
        warn(str(error))
        return error.exit_code
    logging.lastResort, logging.raiseExceptions = None, False  # stderr is for people; the log is a file
    ending = Ending(arguments, out)
    ending.exit_on_signals(signals)
    try:
        code = _run(arguments, ending)
        sys.stdout.flush()
    except OSError as error:
        if error is not out.failure:  # not an error of stdout, so it is unexpected
            raise
        code = 1
    # A failure of stdout fails the run even if other code, such as a front end, has caught it.
    if out.failure is None:
        return code
    if not isinstance(out.failure, BrokenPipeError):  # no message if the reader, such as `head`, has closed the pipe
        warn(f"Could not write the output: {out.failure.strerror}.")
    return code or 1


def _run(arguments: list[str], ending: "Ending") -> int:
    """Run the subcommand or session that the arguments ask for; only errors of stdout are raised."""
    try:
        _check_memory_limit()
        if arguments and arguments[0] in COMMANDS:
            ending.restore_signals()
            return run_command(arguments[0], arguments[1:])
        if arguments and arguments[0] == "__complete":  # called by the completion script of a shell
            from agentcli.cli.completion import print_words

            return print_words("".join(arguments[1:2]))
        return ending.finish(_run_session(_parse_options(arguments), ending))
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:  # argparse has shown its help or the version
        return ended.code if isinstance(ended.code, int) else 0
    except Exception as error:  # noqa: BLE001 - the outermost place: an error that nothing else expected is a bug
        return ending.fail(error)


def _check_memory_limit() -> None:
    """Raise `UserError` if there is too little memory to report errors: Python would hang, or be aborted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE:
        needed = _MIN_ADDRESS_SPACE // 1024
        raise UserError(
            f"Not enough memory to start: `ulimit -v` is {limit // 1024} KiB, agentcli needs {needed}. "
            f"Raise it with `ulimit -v {needed}`."
        )


def _parse_options(arguments: list[str]) -> argparse.Namespace:
    """Return the flags and the prompt. Raises `UsageError`, also if the prompt is, or resembles, a command's name."""
    flags = make_main_parser(COMMANDS)
    options, unknown = flags.parse_known_args(arguments)
    prompt = "" if options.print else options.prompt or ""  # with -p, a command's name is a prompt, too
    as_prompt = f" To send it as a prompt: agentcli -p {prompt}"
    if prompt in COMMANDS:
        raise UsageError(f"Put the command before all flags: agentcli {prompt} …{as_prompt}")
    may_be_command = len(prompt.split()) == 1 and not prompt.startswith("/")  # a slash starts a slash command
    if may_be_command and (name := nearest(prompt.strip(), COMMANDS, cutoff=0.8)):
        raise UsageError(f"Did you mean `agentcli {name}`?{as_prompt}")
    if unknown:  # last, because the flags of a mistyped command are unknown here
        known = (name for names, _ in (*FLAGS, *CLAUDE_CODE_FLAGS) for name in names)
        near = nearest(unknown[0].partition("=")[0], known)
        flags.error(f"unrecognized arguments: {' '.join(unknown)}{f' (did you mean {near}?)' if near else ''}")
    return options


def _run_session(options: argparse.Namespace, ending: "Ending") -> int:
    """Run one prompt, the stream on stdin, or a terminal session, and return the exit code. Raises `UserError`."""
    config = config_for(options, _working_directory(options.cd))
    is_text = options.output_format == options.input_format == "text"
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    has_screen = is_terminal and is_text and not options.print
    set_up_logging(config, has_screen=has_screen)
    for notice in config.notices:
        warn(notice)
    if options.resume and options.resume.startswith(("claude:", "codex:")):
        from agentcli.cli.session_import import import_for_resume

        options.resume = import_for_resume(config, options)
    # Only a run that stores no session can use a temporary state folder, for example if the home is read-only.
    with _with_writable_state(config) if options.no_session else nullcontext(config) as config:
        if not has_screen:
            from agentcli.cli.session_opener import answer_once

            return asyncio.run(_handle_lack_of_memory(answer_once(config, options, _one_shot_prompt(options), ending)))
        if options.json_schema is not None:
            raise UsageError("--json-schema works only with -p.")
        config = apply_agent(options, config)
        ending.restore_signals()  # the terminal's front ends handle signals themselves
        # `--resume` without an ID opens the list of sessions first.
        prompt = "/resume" if options.resume == "" else options.prompt
        if options.plain or config.environment.get("TERM") == "dumb":
            from agentcli.cli.terminal_opener import open_plain

            first_line = " · ".join((*banner(config), "/help shows commands"))
            return asyncio.run(open_plain(config, options, prompt, [first_line]))
        return asyncio.run(_open_live(config, options, prompt))


@contextmanager
def _with_writable_state(config: Config) -> Iterator[Config]:
    """Yield the configuration, with temporary folders for state and cache if its own ones are not writable."""
    if is_writable(config.paths.state):
        yield config
        return
    from tempfile import TemporaryDirectory  # 2 ms, and seldom needed

    # The sandbox hides the state folder in use; the usual one must stay hidden, too.
    sandbox = replace(config.settings.sandbox, masked=(*config.settings.sandbox.masked, str(config.paths.state)))
    with TemporaryDirectory(prefix="agentcli-", ignore_cleanup_errors=True) as folder:
        paths = replace(config.paths, state=Path(folder, "state"), cache=Path(folder, "cache"))
        yield replace(config, paths=paths, settings=replace(config.settings, sandbox=sandbox))


def _working_directory(folder: str | None) -> Path:
    """Change to the folder of `--cd`, if there is one, and return the working directory. Raises `UsageError`."""
    try:
        if folder is not None:
            os.chdir(folder)
    except OSError as error:
        raise UsageError(f"Could not work in {folder}: {error.strerror}.") from error
    return current_folder()


def _one_shot_prompt(options: argparse.Namespace) -> str:
    """Return the prompt of a one-shot run: the argument, stdin, or both. Raises `UsageError` if there is none."""
    argument = "" if options.prompt == "-" else options.prompt
    if options.input_format == "stream-json":  # stdin has more prompts
        return argument or ""
    piped = read_stdin() if options.prompt == "-" or stdin_is_piped() else ""
    prompt = argument or piped
    if argument and piped:
        prompt = f"{argument}\n\n<stdin>\n{piped}\n</stdin>"
    if not prompt.strip():
        raise UsageError('There is no prompt. Add one (agentcli -p "what does this project do?"), or pipe one in.')
    return prompt


async def _handle_lack_of_memory(work: Coroutine[Any, Any, int]) -> int:
    """Wait for `work`; end the process if a callback runs out of memory: `work` could wait for its result for ever."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            os.write(2, f"agentcli: {OUT_OF_MEMORY}\n".encode())
            os._exit(1)
        loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
    return await work


async def _open_live(config: Config, options: argparse.Namespace, prompt: str | None) -> int:
    """Run a session with a live screen: the person can type while the rest of the program is imported."""
    from agentcli.frontends.terminal.console import Console, ConsoleView  # prompt_toolkit: most of the start's time
    from agentcli.frontends.terminal.text.theme import Theme, has_true_colours, own_codes, palette_for

    terminal = config.settings.terminal
    palette = palette_for(terminal.theme, config.environment)
    configured_colours = own_codes(terminal.themes.get(terminal.theme, {}), config.environment)
    theme = Theme(palette, configured_colours, is_true_colour=has_true_colours(config.environment))
    console = Console(theme, config.environment, editing_mode=terminal.editing_mode)
    name, folder = banner(config)
    console.banner = [[("bold", name), ("muted", f" · {folder}")], [], []]  # with two empty lines below

    def import_session() -> Callable[..., ConsoleView]:
        from agentcli.cli.terminal_opener import open_live  # 100 ms and more

        return open_live

    async def load() -> ConsoleView:
        open_live = await asyncio.to_thread(import_session)  # in a thread, so that typing stays possible
        gc.freeze()  # what was imported stays until the end, so the collector need not look at it
        gc.enable()  # `__main__` turned it off for the imports
        return open_live(console, config, options, prompt)

    return await console.run(load)


class Ending:
    """Makes sure that a run with JSON output ends with a result object."""

    def __init__(self, arguments: Sequence[str], out: WatchedStdout) -> None:
        self.session_id = ""
        # Returns the result of a run that a signal ends; replaced once there is a session.
        self.unfinished_result: Callable[[], dict[str, Any]] = lambda: self._result("interrupted", "")
        self.has_answered = False  # True once no more results will follow
        self._out = out
        self._format = ""  # read from the raw arguments: signals and failures may come before they are parsed
        for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
            name, is_joined, value = argument.partition("=")
            if name == "--output-format":
                self._format = value if is_joined else following
        self._is_exiting = False
        if self._format in ("json", "stream-json"):
            import agentcli.agent.result  # noqa: F401 - now, because a signal may interrupt a later import

    def fail(self, error: Exception) -> int:
        """Report an error and return the exit code. An error of stdout itself is raised again for `run` to report."""
        if error is self._out.failure:
            raise error
        code = error.exit_code if isinstance(error, UserError) else 1
        text = str(error)
        if is_out_of_memory(error):  # not logged, because logging needs memory
            text = OUT_OF_MEMORY
        elif not isinstance(error, AgentcliError):
            logging.getLogger(__name__).error("the run failed", exc_info=error)
            text = f"{error}." if isinstance(error, OSError) else f"Internal error: {error!r}. The log has details."
        warn(text)
        if code != UsageError.exit_code:  # after a mistake in the arguments no run began, so it has no result
            self._write("error_during_execution", text, type(error).__name__)
        return code

    def finish(self, code: int) -> int:
        """Write a result if the run failed without writing one, and return the exit code."""
        if code not in (0, UsageError.exit_code):
            self._write("interrupted" if code > 128 else "error_during_execution", "")  # 128 + number of the signal
        return code

    def _write(self, subtype: str, text: str, reason: str = "") -> None:
        if self._needs_result:
            from agentcli.agent.result import to_json_line

            self._out.write(to_json_line(self._result(subtype, text, reason)))

    @property
    def _needs_result(self) -> bool:
        return self._format in ("json", "stream-json") and not self._out.ends_with_result

    def _result(self, subtype: str, text: str, reason: str = "") -> dict[str, Any]:
        from agentcli.agent.result import result_object

        return result_object(subtype, printable(text), session_id=printable(self.session_id), reason=reason)

    def exit_on_signals(self, noted: Sequence[int]) -> None:
        """Let signals end the process at once from now on; one that was `noted` earlier ends it now."""
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has SIGHUP ignored
                signal.signal(number, self.exit_at_once)
        if noted:
            self.exit_at_once(noted[0])

    def exit_at_once(self, number: int, frame: object = None) -> None:
        """Handle a signal: end the process, after writing a result object if the output format needs one.

        If the run's last result is already written, the signal has no effect, and the run ends by itself. Otherwise it
        waits for nothing: the conversation is stored already, and the result bypasses all buffers.
        """
        if self._is_exiting:  # a second signal arrived while the first one is being handled
            return
        is_last_result = self._format == "json" or self.has_answered  # a stream may have one result for each prompt
        if self._out.ends_with_result and is_last_result:
            return  # the run ends with its own exit code
        self._is_exiting = True
        if self._needs_result:
            from agentcli.agent.result import to_json_line

            line = (b"\n" if self._out.is_within_line else b"") + to_json_line(self.unfinished_result())
            stdout = select.poll()
            stdout.register(1, select.POLLOUT)
            if stdout.poll(0):  # otherwise the pipe is full, and writing could block for ever
                with suppress(OSError):
                    os.write(1, line)
        os._exit(128 + number)

    def exit_stuck(self, why: str) -> None:
        """End the process although a part of it is stuck; the conversation is stored."""
        warn(why)
        self._write("error_during_execution", why, "GivenUp")
        os._exit(1)

    @staticmethod
    def restore_signals() -> None:
        """Give signals their default effects again, for front ends and subcommands that handle them themselves."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
