"""Names the program and where it runs: the first words of a session."""

from __future__ import annotations

from pathlib import Path

from agentcli.frontends.printable import printable, with_tilde
from agentcli.settings.load import Config


def banner(config: Config) -> tuple[str, str]:
    """The program and where it runs."""
    from agentcli import __version__

    return f"agentcli {__version__}", with_tilde(printable(str(config.cwd)), str(Path.home()))
