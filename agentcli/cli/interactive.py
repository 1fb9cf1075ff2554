"""Starts the terminal session: first the imports for the first character, then those for a first answer."""

from __future__ import annotations

import argparse
import asyncio
import gc
from typing import TYPE_CHECKING

from agentcli.cli.banner import banner
from agentcli.settings.load import Config

if TYPE_CHECKING:
    from agentcli.frontends.terminal.console import ConsoleView


def open_terminal(config: Config, options: argparse.Namespace) -> int:
    # `--resume` without an ID: the list to choose from is the first thing on the screen.
    prompt = "/resume" if options.resume == "" else options.prompt
    if options.plain or config.environment.get("TERM") == "dumb":
        from agentcli.cli.terminal_opener import open_plain

        return asyncio.run(open_plain(config, options, prompt, [" · ".join((*banner(config), "/help shows commands"))]))
    return asyncio.run(_open_live(config, options, prompt))


async def _open_live(config: Config, options: argparse.Namespace, prompt: str | None) -> int:
    from agentcli.frontends.terminal.console import Console  # prompt_toolkit: most of the start's time
    from agentcli.frontends.terminal.text.theme import Theme, has_true_colours, own_codes, palette_for

    terminal = config.settings.terminal
    palette = palette_for(terminal.theme, config.environment, is_terminal=True)
    own = own_codes(terminal.themes.get(terminal.theme, {}), config.environment)
    theme = Theme(palette, own, is_true=has_true_colours(config.environment))
    console = Console(theme, config.environment, editing_mode=terminal.editing_mode)
    name, folder = banner(config)
    console.show_head([[("bold", name), ("muted", f" · {folder}")], [], []])

    async def load() -> ConsoleView:
        """Import everything else in a thread, so that typing stays possible."""
        await asyncio.to_thread(_import_session)  # 100 ms and more
        from agentcli.cli.terminal_opener import open_live

        gc.freeze()
        gc.enable()
        return open_live(console, config, options, prompt)

    return await console.run(load)


def _import_session() -> None:
    import agentcli.cli.terminal_opener  # noqa: F401
