"""Defines the slash command that reviews and trusts a project's own files, in both the live and the plain terminal."""

import asyncio

from agentcli.agent.commands.command import CommandHost, SlashCommand
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.status import TerminalOpener


def trust_command(controller: TerminalController, opener: TerminalOpener) -> SlashCommand:
    async def trust(host: CommandHost, argument: str) -> str:
        controller.require_idle()
        review = await asyncio.to_thread(opener.review_project)
        if isinstance(review, str):
            return review
        shown, accept = review
        controller.view.print_line(f"{shown}\n")
        answers = [("No, not now", "nothing is changed"), ("Yes, trust these files", "until they change")]
        if await host.choose("Trust the project's files as they are now?", answers) != 1:
            return "Nothing was trusted."
        accepted = await asyncio.to_thread(accept)
        await controller.reload()
        return (
            f"{accepted}\nThis session uses all of them now, and asks again for what you had allowed for the session."
        )

    return SlashCommand("trust", "review the project's own settings, and use them", trust, group="Permissions")
