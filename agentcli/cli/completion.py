"""Writes the scripts of `agentcli completion`, with which shells complete commands, and flags with their values."""

import argparse
from typing import Any

from agentcli.cli.options import FLAGS as SESSION_FLAGS
from agentcli.cli.options import Flags, make_flag_parser
from agentcli.cli.subcommands import COMMANDS

FLAGS: Flags = ((("shell",), {"choices": ("bash", "zsh", "fish"), "help": "One of bash, zsh, fish."}),)
_ABOUT = """Print a script that completes commands, and the flags of `agentcli` with their values. To install it:

bash: agentcli completion bash >~/.local/share/bash-completion/completions/agentcli
zsh: agentcli completion zsh >"${fpath[1]}/_agentcli"
fish: agentcli completion fish >~/.config/fish/completions/agentcli.fish"""
_FILES = ("--settings", "--system-prompt-file", "--append-system-prompt-file", "--mcp-config", "--json-schema")
_FOLDERS = ("--add-dir", "--cd", "--plugin-dir")


def run(arguments: list[str]) -> int:
    import shtab

    shell = make_flag_parser("agentcli completion", _ABOUT, FLAGS).parse_args(arguments).shell
    parser = argparse.ArgumentParser("agentcli")
    places = dict.fromkeys(_FILES, shtab.FILE) | dict.fromkeys(_FOLDERS, shtab.DIRECTORY)
    for names, options in SESSION_FLAGS:
        action: Any = parser.add_argument(*names, **options)
        if names[-1] in places:
            action.complete = places[names[-1]]
    subparsers = parser.add_subparsers()
    for name, help in COMMANDS.items():
        subparsers.add_parser(name, help=help, description=help)
    print(shtab.complete(parser, shell=shell), end="")
    return 0
