"""Defines the flags of `agentcli` in one table for argparse (7 ms to import; typer: 40 ms); reads files and stdin."""

import argparse
import io
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from msgspec.structs import replace

from agentcli.agent.permissions.modes import MODES, parse_mode
from agentcli.cli import claude_code_flags
from agentcli.cli.output import locale_encoding
from agentcli.errors import UsageError
from agentcli.settings.files import project_root, read_small_file
from agentcli.settings.load import Config, load_config
from agentcli.settings.trust import CLAUDE_SETTINGS, PROJECT_FILES, is_project_file
from agentcli.version import __version__


def decode_argument(argument: str) -> str:
    return decode_text(os.fsencode(argument))  # Python decoded bytes that are not UTF-8 as lone surrogates


def decode_text(data: bytes) -> str:
    """Decode an argument or stdin as UTF-8, or else in the charset of the locale; invalid bytes are replaced."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(locale_encoding() or "utf-8", errors="replace")


Flags = tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
_TEXT: dict[str, Any] = {"type": decode_argument}
_PROFILES = ("read-only", "workspace-write", "danger-full-access")  # of sandboxes


def _flag(names: str, help: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return a row of `FLAGS`: names, and options for argparse; without options the flag is a switch."""
    return tuple(names.split()), {**(options or {"action": "store_true"}), "help": help}


FLAGS: Flags = (
    _flag("-p --print", "answer once and exit; text from stdin is added to the prompt"),
    _flag("--output-format", "the output format of -p", choices=("text", "json", "stream-json"), default="text"),
    _flag("--input-format", "the format of stdin", choices=("text", "stream-json"), default="text"),
    _flag("--include-partial-messages", "stream-json: also print text as it arrives"),
    _flag("-m --model", "the model to use", metavar="PROVIDER/MODEL"),
    _flag("--fallback-model", "the model to use when the first one is overloaded", metavar="PROVIDER/MODEL"),
    _flag("--effort", "the reasoning effort, for models that support it", choices="low medium high xhigh max".split()),
    _flag("-c --continue", "resume this directory's newest conversation", dest="continue_", action="store_true"),
    _flag("-r --resume", "resume ID, claude:ID or codex:ID, or choose", nargs="?", const="", **_TEXT, metavar="ID"),
    _flag("--fork-session", "continue in a copy of the session"),
    _flag("--take-over", "resume a session that is open elsewhere, and close it there"),
    _flag("--session-id", "the id for the new session", metavar="UUID"),
    _flag("-n --name", "a name for the session, for use with --resume", default="", **_TEXT),
    _flag("--no-session", "store nothing"),
    _flag("--permission-mode", "what requires approval", type=parse_mode, choices=MODES),
    _flag("--allow", "allow calls, such as 'bash(git log *)'", action="append", default=[], metavar="RULE"),
    _flag("--deny", "deny calls; wins over --allow", action="append", default=[], metavar="RULE"),
    _flag("--sandbox", "what commands can change (workspace-write)", choices=_PROFILES),
    _flag("--tools", "offer only these tools, separated by commas ('none' for none)", metavar="NAMES"),
    _flag("--max-turns", "stop after N requests for one prompt (25; a session asks after 100)", type=int, metavar="N"),
    _flag("--max-budget-usd", "stop when the session has cost this many dollars", type=float, metavar="X"),
    _flag("--fail-on-denial", "exit with 56 if a call was denied because no one could approve it"),
    _flag("--require-evidence", "exit with 57 if the log does not confirm the claims of the answer"),
    _flag("--json-schema", "require an answer that matches this JSON Schema (else exit with 55)", metavar="FILE|JSON"),
    _flag("--system-prompt", "replace the built-in system prompt", **_TEXT, metavar="TEXT"),
    _flag("--system-prompt-file", "the same, from a file", metavar="FILE"),
    _flag("--append-system-prompt", "add to the system prompt", **_TEXT, metavar="TEXT"),
    _flag("--append-system-prompt-file", "the same, from a file", metavar="FILE"),
    _flag("--add-dir", "add a folder to the workspace", action="append", default=[], metavar="DIR"),
    _flag("-C --cd", "work in this directory", metavar="DIR"),
    _flag(
        "--mcp-config", "MCP servers to use, as .mcp.json has them", action="append", default=[], metavar="FILE|JSON"
    ),
    _flag("--plugin-dir", "use the plugin in a folder", action="append", default=[], type=Path, metavar="DIR"),
    _flag("--strict-mcp-config", "use only the servers of --mcp-config"),
    _flag("--settings", "settings (TOML or JSON) that override those of the files", metavar="FILE|JSON"),
    _flag("--trust", "trust and use this project's own settings"),
    _flag("--bare", "ignore hooks, skills, MCP servers, memory and instruction files"),
    _flag("--plain", "run a linear session without colours or cursor movement"),
    _flag("--verbose", "show tool calls on stderr, and log more"),
    _flag("-v --version", "print the version", action="version", version=f"agentcli {__version__}"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. `agentcli --help` shows all flags.")


def make_main_parser(subcommands: dict[str, str]) -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<13}{text}" for name, text in subcommands.items())
    about = "A coding assistant for the terminal. Without -p it opens a session; PROMPT is its first message."
    help = "the task, or a slash command; '-' with -p reads it from stdin"
    prompt = (("prompt",), {"nargs": "?", "type": decode_argument, "metavar": "PROMPT", "help": help})
    main_parser = make_flag_parser("agentcli", about, (prompt, *FLAGS))
    group = main_parser.add_argument_group("flags of Claude Code", claude_code_flags.HELP)
    for names, options in claude_code_flags.CLAUDE_CODE_FLAGS:  # without lines of their own: `HELP` names them
        group.add_argument(*names, help=argparse.SUPPRESS, **options)
    main_parser.epilog = f"commands (agentcli COMMAND --help):\n{commands}"
    return main_parser


# Flags that have no meaning for a server: its clients open the sessions and display the events.
_OF_ONE_RUN = frozenset(
    "--print --output-format --input-format --include-partial-messages --continue --resume --fork-session --take-over "
    "--session-id --name --no-session --json-schema --fail-on-denial --require-evidence --cd --plain --version".split()
)
SERVER_FLAGS = tuple(row for row in FLAGS if row[0][-1] not in _OF_ONE_RUN)
# Servers open sessions too, but lack some flags of `agentcli`: these values stand in for them.
DEFAULTS = claude_code_flags.DEFAULTS | {"input_format": "text"}


def make_flag_parser(prog: str, description: str, flags: Flags) -> argparse.ArgumentParser:
    """Return a parser of these flags, for `agentcli` itself or for a subcommand that does without typer."""
    flag_parser = _Parser(prog=prog, description=description, allow_abbrev=False, add_help=False)
    flag_parser.formatter_class = argparse.RawDescriptionHelpFormatter
    # Adding flags to groups is five times as fast: a parser would create a formatter for each flag.
    prompts, options = map(flag_parser.add_argument_group, ("positional arguments", "options"))
    options.add_argument("-h", "--help", action="help", help="show this help message and exit")
    flag_parser.set_defaults(**DEFAULTS)
    for names, argparse_options in flags:
        (options if names[0].startswith("-") else prompts).add_argument(*names, **argparse_options)
    return flag_parser


# Each setting that a flag sets, and the flag.
FLAG_OF = {
    "provider.model": "--model", "provider.fallback_model": "--fallback-model", "tokens.effort": "--effort",
    "tools.only": "--tools", "permissions.mode": "--permission-mode", "permissions.allow": "--allow",
    "permissions.deny": "--deny", "permissions.additional_directories": "--add-dir", "sandbox.profile": "--sandbox",
    "limits.max_turns": "--max-turns", "limits.max_budget_usd": "--max-budget-usd",
    "observability.log_level": "--verbose",
}  # fmt: skip


def settings_from(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given flags as a settings layer, nested like config.toml. Raises `UsageError`."""
    layer: dict[str, Any] = {key.partition(".")[0]: {} for key in FLAG_OF}
    for key, flag in FLAG_OF.items():
        value = getattr(options, flag.removeprefix("--").replace("-", "_"))
        match flag:
            case "--model" if value in ("default", "inherit"):  # Claude Code's words for the configured model
                value = None
            case "--tools" if value is not None:
                value = claude_code_flags.split_tools(value)
            case "--add-dir":
                value = [str(Path(folder).absolute()) for folder in value]
            case "--verbose":
                value = "debug" if value else None
        if value not in (None, []):
            section, _, name = key.partition(".")
            layer[section][name] = value
    return layer


def config_for(options: argparse.Namespace, cwd: Path, folders: Sequence[Path] = ()) -> Config:
    """Load the settings for `cwd`, overridden by the flags; `folders` join the workspace. Raises `UserError`."""
    flags = settings_from(options)
    if folders:
        by_flag = flags["permissions"].get("additional_directories", [])
        flags["permissions"]["additional_directories"] = [*by_flag, *map(str, folders)]
    extra, import_notes = claude_code_flags.settings_layer(options.settings) if options.settings else (None, ())
    config = load_config(
        cwd,
        flags=flags,
        flag_names={key: f"{flag} ({key})" for key, flag in FLAG_OF.items()},
        extra=extra,
        trust=options.trust,
        sources=claude_code_flags.setting_sources(options.setting_sources),
    )
    notices = [*config.notices, *claude_code_flags.unused_flag_notes(options), *import_notes]
    uses_project = not (options.bare or options.setting_sources)
    if uses_project and (notice := claude_settings_notice(cwd)):
        notices.append(notice)
    return replace(config, notices=tuple(notices))


def claude_settings_notice(cwd: Path) -> str:
    """Return a warning about rules and hooks with no effect here, as only Claude Code's settings have them; or ""."""
    root, unused = project_root(cwd), list[str]()
    # Both have a shared file and a local one, in this order, and an import writes each to its counterpart.
    for claude_file, agentcli_file in zip(CLAUDE_SETTINGS, PROJECT_FILES.values(), strict=True):
        if is_project_file(root / claude_file, root):
            imported = _keys_about_calls(root / agentcli_file)
            if missing := [key for key in _keys_about_calls(root / claude_file) if key not in imported]:
                unused.append(f"{' and '.join(missing)} in {claude_file}")
    how = "To take them over: agentcli config import claude-code --project"
    return f"Not in force: {' and '.join(unused)}. {how}" if unused else ""


def _keys_about_calls(file: Path) -> list[str]:
    """Return `permissions` and `hooks`, or the one of them that occurs in a file; the file is not parsed."""
    with suppress(OSError):
        content = read_small_file(file)
        return [key for key in ("permissions", "hooks") if key.encode() in content]
    return []


def text_or_file(flag: str, text: str | None, file: str | Path | None) -> str | None:
    """Return the text of `--FLAG TEXT` or `--FLAG-file FILE`. Raises `UsageError`, also if both are set."""
    if file is None:
        return text
    if text is not None:
        raise UsageError(f"Use either {flag} or {flag}-file, not both.")
    return read_text_file(file)


def read_text_file(file: str | Path) -> str:
    """Return the text of a file that a flag names. Raises `UsageError`."""
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Could not read {file}: {error}.") from error


def read_stdin() -> str:
    return decode_text(sys.stdin.buffer.read()) if _has_stdin() else ""


def _has_stdin() -> bool:
    return sys.stdin is not None and not (sys.stdin.closed or sys.stdin.isatty())


def unshared_stdin() -> BinaryIO:
    """Open stdin again for a thread: Python aborts at exit if a thread still reads `sys.stdin`. Raises `UsageError`."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        os.read(sys.stdin.fileno(), 0)  # reads nothing, but fails now for what cannot be read, such as a folder
    except OSError as error:
        raise UsageError(f"Could not read stdin: {error.strerror}.") from error
    return open(sys.stdin.fileno(), "rb", closefd=False)


def stdin_is_piped() -> bool:
    """Return True if stdin is a pipe, a file or a socket; False for a terminal, /dev/null or a closed stdin."""
    try:
        kind = stat.S_IFMT(os.fstat(sys.stdin.fileno()).st_mode) if _has_stdin() else 0
    except OSError:
        return False
    return kind in (stat.S_IFIFO, stat.S_IFREG, stat.S_IFSOCK)
