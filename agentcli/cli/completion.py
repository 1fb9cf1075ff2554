"""Shell completion: writes the scripts, and prints the words that they look up at runtime, with few imports."""

import argparse
import asyncio
import re
from typing import Any

from agentcli.cli.options import FLAGS as SESSION_FLAGS
from agentcli.cli.options import Flags, make_flag_parser
from agentcli.cli.subcommands import COMMANDS, load_command
from agentcli.frontends.printable import printable
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config, load_config

SHELLS = ("bash", "zsh", "fish")
FLAGS: Flags = ((("shell",), {"choices": SHELLS, "help": f"One of {', '.join(SHELLS)}."}),)
_ABOUT = """Print a script that completes commands, flags with their values, sessions and models. To install it:

bash: agentcli completion bash >~/.local/share/bash-completion/completions/agentcli
zsh: agentcli completion zsh >"${fpath[1]}/_agentcli"
fish: agentcli completion fish >~/.config/fish/completions/agentcli.fish"""
# The name of an option or argument ("GROUP NAME" for only one group of commands) -> its values: files, folders, or a
# kind of words that `_words` returns.
_VALUES = {
    "model": "models", "fallback_model": "models", "resume": "sessions", "session": "sessions",
    "sessions session_id": "sessions",
    "settings": "files", "system_prompt_file": "files", "append_system_prompt_file": "files", "file": "files",
    "folders": "folders", "add_dir": "folders", "cd": "folders",
}  # fmt: skip
# A zsh function that shows the meanings beside the words; fish does this by itself.
_ZSH = """\
_agentcli_ask() {
    local -a found=("${(@f)$(agentcli __complete $1 2>/dev/null)}")
    found=("${(@)found//:/\\\\:}")
    found=("${(@)found/$'\\t'/:}")
    _describe -t $1 $1 found
}"""


def run(arguments: list[str]) -> int:
    print(script(make_flag_parser("agentcli completion", _ABOUT, FLAGS).parse_args(arguments).shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell. It calls `agentcli __complete KIND` for models and sessions."""
    import shtab
    from typer.main import get_command

    parser = argparse.ArgumentParser("agentcli")
    _add_flags(parser, SESSION_FLAGS)
    subparsers = parser.add_subparsers()
    for name, help in COMMANDS.items():
        command = load_command(name)
        subparser = subparsers.add_parser(name, help=help, description=help)
        if hasattr(command, "FLAGS"):
            _add_flags(subparser, command.FLAGS)
        else:
            # A module with a `run` of its own has its typer app in `app`.
            _add_command(subparser, get_command(getattr(command, "app", command)), name)
    return str(shtab.complete(parser, shell=shell, preamble=_ZSH if shell == "zsh" else ""))


def _add_flags(parser: argparse.ArgumentParser, flags: Flags) -> None:
    for names, options in flags:
        _set_values(parser.add_argument(*names, **options), names[-1].lstrip("-").replace("-", "_"))


def _add_command(parser: argparse.ArgumentParser, command: Any, group: str) -> None:
    """Add the parameters of a typer command, and its subcommands, to a parser."""
    from typer.core import TyperGroup, TyperOption

    for param in command.params:
        help = (param.help or "").replace("%", "%%")
        if isinstance(param, TyperOption):
            switch: dict[str, Any] = {"action": "store_true"} if param.is_flag else {}
            action = parser.add_argument(*param.opts, *param.secondary_opts, help=help, **switch)
        else:
            action = parser.add_argument(str(param.name), nargs="?" if param.nargs == 1 else "*", help=help)
        _set_values(action, str(param.name), group)
    if isinstance(command, TyperGroup):
        subparsers = parser.add_subparsers()
        for name, subcommand in command.commands.items():
            help = " ".join((subcommand.help or "").partition("\n\n")[0].split()).replace("%", "%%")
            _add_command(subparsers.add_parser(name, help=help, description=help), subcommand, group)


def _set_values(action: Any, name: str, group: str = "") -> None:
    """Set the values that an option or argument completes to: those its help lists, else those for its name."""
    import shtab

    if listed := re.match(r"One of ([\w, -]+)", action.help or ""):
        action.choices = listed[1].split(", ")
    elif kind := _VALUES.get(f"{group} {name}", _VALUES.get(name, "")):
        ask = f"agentcli __complete {kind} 2>/dev/null"
        words = {  # how each shell looks them up, in shtab's format
            "bash": f"_agentcli_{kind}",
            "zsh": f" _agentcli_ask {kind}",  # the space keeps zsh from adding arguments of its own
            "fish": f"({ask})",
            "preamble": {"bash": f'_agentcli_{kind}() {{ compgen -W "$({ask} | cut -f 1)" -- "$1"; }}'},
        }
        action.complete = {"files": shtab.FILE, "folders": shtab.DIRECTORY}.get(kind, words)


def print_words(kind: str) -> int:
    """Print the words of a kind, one per line, each followed by a tab and its meaning; return the exit code."""
    for word, meaning in asyncio.run(_words(kind, load_config(current_folder()))):
        if re.fullmatch(r"[\w./:@+~-]+", word):  # others would have to be quoted for the shell
            print(f"{word}\t{printable(' '.join(meaning.split()))[:80]}")
    return 0


async def _words(kind: str, config: Config) -> list[tuple[str, str]]:
    """Return the words of a kind with their meanings; `sessions` are the newest ones of this directory."""
    match kind:
        case "sessions" if config.paths.sessions.is_file():
            from agentcli.infra.sessions.sqlite import SqliteSessions

            store = SqliteSessions(config.paths.sessions)
            try:
                return [(info.id, info.name or info.title) for info in await store.list(cwd=config.cwd)]
            finally:
                await store.close()
        case "models":
            from agentcli.models.choice import Models

            models = Models(config)
            table = ((info.name, f"window {info.window:,} tokens") for info in models.table())
            return [*((name, "here") for name in await models.local_models()), *table]
        case _:
            return []
