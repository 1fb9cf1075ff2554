"""`agentcli completion`: prints the script with which a shell completes agentcli."""

from __future__ import annotations

from typing import Annotated

import typer

from agentcli.cli.completion import SHELLS, script
from agentcli.cli.subcommands.shared import single_command
from agentcli.errors import UsageError, did_you_mean


@single_command
def app(shell: Annotated[str, typer.Argument(help=f"One of {', '.join(SHELLS)}.")]) -> None:
    """Commands, flags with their values, sessions, models and skills. To install it:

    bash: agentcli completion bash >~/.local/share/bash-completion/completions/agentcli

    zsh: agentcli completion zsh >"${fpath[1]}/_agentcli"

    fish: agentcli completion fish >~/.config/fish/completions/agentcli.fish
    """
    if shell not in SHELLS:
        raise UsageError(f"No script for {shell!r}{did_you_mean(shell, SHELLS)}; there is {', '.join(SHELLS)}.")
    print(script(shell), end="")
