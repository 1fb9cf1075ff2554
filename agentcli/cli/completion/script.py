"""Makes the scripts with which shells complete agentcli, from its flags and its subcommands' own options."""

from __future__ import annotations

import argparse
import re
from typing import Any

import shtab
import typer
from typer.core import TyperGroup, TyperOption

from agentcli.cli.main import COMMANDS, load_command
from agentcli.cli.options import FLAGS, Flags

SHELLS = ("bash", "zsh", "fish")
# What options and arguments take, by their names: files, folders, or a kind of words.py.
_TAKES = {
    "model": "models", "fallback_model": "models", "resume": "sessions", "session": "sessions",
    "sessions session_id": "sessions", "skills name": "skills", "login provider": "providers",
    "settings": "files", "system_prompt_file": "files", "append_system_prompt_file": "files", "file": "files",
    "folders": "folders", "add_dir": "folders", "cd": "folders",
}  # fmt: skip
# zsh shows the meanings beside the words; fish does so by itself.
_ZSH = """\
_agentcli_ask() {
    local -a found=("${(@f)$(agentcli __complete $1 2>/dev/null)}")
    found=("${(@)found//:/\\\\:}")
    found=("${(@)found/$'\\t'/:}")
    _describe -t $1 $1 found
}"""


def script(shell: str) -> str:
    """Static but for the words that change, which it asks for with `agentcli __complete KIND`."""
    parser = argparse.ArgumentParser("agentcli")
    _add_flags(parser, FLAGS)
    below = parser.add_subparsers()
    for name, help in COMMANDS.items():
        module = load_command(name)
        one = below.add_parser(name, help=help, description=help)
        if hasattr(module, "app"):
            _fill(one, typer.main.get_command(module.app), name)
        else:
            _add_flags(one, module.FLAGS)
    made: str = shtab.complete(parser, shell=shell, preamble=_ZSH if shell == "zsh" else "")
    return made


def _add_flags(parser: argparse.ArgumentParser, flags: Flags) -> None:
    for names, how in flags:
        _told(parser.add_argument(*names, **how), names[-1].lstrip("-").replace("-", "_"))


def _fill(parser: argparse.ArgumentParser, command: Any, group: str) -> None:
    """Add to a parser what a typer command takes, and the commands below it."""
    for param in command.params:
        help = (param.help or "").replace("%", "%%")
        if isinstance(param, TyperOption):
            kind: dict[str, Any] = {"action": "store_true"} if param.is_flag else {}
            made = parser.add_argument(*param.opts, *param.secondary_opts, help=help, **kind)
        else:
            made = parser.add_argument(str(param.name), nargs="?" if param.nargs == 1 else "*", help=help)
        _told(made, str(param.name), group)
    if isinstance(command, TyperGroup):
        below = parser.add_subparsers()
        for name, one in command.commands.items():
            told = " ".join((one.help or "").partition("\n\n")[0].split()).replace("%", "%%")
            _fill(below.add_parser(name, help=told, description=told), one, group)


def _told(action: Any, name: str, group: str = "") -> None:
    """Note what an option or an argument takes: the closed list that its help names, else what its name says."""
    if listed := re.match(r"One of ([\w, -]+)", action.help or ""):
        action.choices = listed[1].split(", ")
    elif takes := _TAKES.get(f"{group} {name}", _TAKES.get(name, "")):
        action.complete = {"files": shtab.FILE, "folders": shtab.DIRECTORY}.get(takes) or _asked_for(takes)


def _asked_for(kind: str) -> dict[str, Any]:
    ask = f"agentcli __complete {kind} 2>/dev/null"
    return {
        "bash": f"_agentcli_{kind}",
        "zsh": f" _agentcli_ask {kind}",
        "fish": f"({ask})",
        "preamble": {"bash": f'_agentcli_{kind}() {{ compgen -W "$({ask} | cut -f 1)" -- "$1"; }}'},
    }
