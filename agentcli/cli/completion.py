"""Writes the scripts of `agentcli completion`, with which shells complete commands, flags and their values."""

import argparse
import re
from typing import Any

from agentcli.cli.options import FLAGS as SESSION_FLAGS
from agentcli.cli.options import Flags, make_flag_parser
from agentcli.cli.subcommands import COMMANDS, load_command

SHELLS = ("bash", "zsh", "fish")
FLAGS: Flags = ((("shell",), {"choices": SHELLS, "help": f"One of {', '.join(SHELLS)}."}),)
_ABOUT = """Print a script that completes commands and flags with their values. To install it:

bash: agentcli completion bash >~/.local/share/bash-completion/completions/agentcli
zsh: agentcli completion zsh >"${fpath[1]}/_agentcli"
fish: agentcli completion fish >~/.config/fish/completions/agentcli.fish"""
# The names of options and arguments whose values are files or folders.
_FILES = ("settings", "system_prompt_file", "append_system_prompt_file", "file")
_FOLDERS = ("folders", "add_dir", "cd")


def run(arguments: list[str]) -> int:
    import shtab
    from typer.main import get_command

    shell = make_flag_parser("agentcli completion", _ABOUT, FLAGS).parse_args(arguments).shell
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
            _add_command(subparser, get_command(getattr(command, "app", command)))
    print(shtab.complete(parser, shell=shell), end="")
    return 0


def _add_flags(parser: argparse.ArgumentParser, flags: Flags) -> None:
    for names, options in flags:
        _set_values(parser.add_argument(*names, **options), names[-1].lstrip("-").replace("-", "_"))


def _add_command(parser: argparse.ArgumentParser, command: Any) -> None:
    """Add the parameters of a typer command, and its subcommands, to a parser."""
    from typer.core import TyperGroup, TyperOption

    for param in command.params:
        help = (param.help or "").replace("%", "%%")
        if isinstance(param, TyperOption):
            switch: dict[str, Any] = {"action": "store_true"} if param.is_flag else {}
            action = parser.add_argument(*param.opts, *param.secondary_opts, help=help, **switch)
        else:
            action = parser.add_argument(str(param.name), nargs="?" if param.nargs == 1 else "*", help=help)
        _set_values(action, str(param.name))
    if isinstance(command, TyperGroup):
        subparsers = parser.add_subparsers()
        for name, subcommand in command.commands.items():
            help = " ".join((subcommand.help or "").partition("\n\n")[0].split()).replace("%", "%%")
            _add_command(subparsers.add_parser(name, help=help, description=help), subcommand)


def _set_values(action: Any, name: str) -> None:
    """Set the values that an option or argument completes to: those its help lists, else those for its name."""
    import shtab

    if listed := re.match(r"One of ([\w, -]+)", action.help or ""):
        action.choices = listed[1].split(", ")
    elif name in _FILES:
        action.complete = shtab.FILE
    elif name in _FOLDERS:
        action.complete = shtab.DIRECTORY
