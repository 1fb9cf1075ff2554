"""Defines the slash commands of the terminal, which (except /trust) need a live screen, and completes arguments."""

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import get_args

from agentcli.agent.commands.command import CommandHost, SlashCommand, marked_list, split_keep
from agentcli.agent.commands.session import PROGRAM
from agentcli.agent.loop import GO_ON
from agentcli.conversation.entries import Assistant, User, reminder
from agentcli.errors import UsageError, UserError
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.dialogs import Dialogs
from agentcli.frontends.terminal.programs import run_clipboard_programs
from agentcli.frontends.terminal.session_text import SearchList, SessionText
from agentcli.frontends.terminal.status import TerminalOpener
from agentcli.frontends.terminal.text.theme import background_of, own_codes, palette_for
from agentcli.llm.messages import Text
from agentcli.llm.provider import Effort
from agentcli.settings.terminal import THEMES

THEMES_IN_WORDS = {
    "auto": "match the terminal's background",
    "dark": "for a dark background",
    "light": "for a light background",
    "high-contrast": "stronger contrast",
    "ansi": "the terminal's own sixteen colours",
    "none": "no colours",
}
MAX_OSC_52_BYTES = 74_000  # of text: xterm takes 100,000 of base64
# Programs that copy their stdin. Over ssh, without such a program, OSC 52 still reaches the clipboard.
_CLIPBOARDS = (("wl-copy",), ("xclip", "-selection", "clipboard"), ("xsel", "-ib"), ("pbcopy",))


class Appearance:
    """The theme of the screen; `choice` is its name, one of `themes`: ours and the person's `own`."""

    def __init__(self, console: Console, choice: str, own: Mapping[str, Mapping[str, int | str]]) -> None:
        self._console, self._own, self.choice = console, own, choice
        self.themes = (*THEMES, *own)
        self._background = ""  # "dark" or "light", once the terminal has reported it

    def use(self, choice: str) -> None:
        self.choice = choice
        environment = self._console.environment
        palette = palette_for(choice, environment, background=self._background)
        if self._console.theme.use(palette, own_codes(self._own.get(choice, {}), environment)):
            self._console.redraw()

    def adapt_to_background(self, report: str) -> None:
        self._background = background_of(report)
        self.use(self.choice)


def screen_commands(
    controller: TerminalController, opener: TerminalOpener, console: Console, appearance: Appearance, dialogs: Dialogs
) -> Sequence[SlashCommand]:
    find = partial(_find, controller=controller, dialogs=dialogs)
    theme = partial(_theme, appearance=appearance)

    async def login(host: CommandHost, provider: str) -> str:
        return await controller.log_in(provider)

    async def logout(host: CommandHost, provider: str) -> str:
        if not provider:
            raise UsageError("Add the provider: /logout PROVIDER")
        return opener.forget_key(provider)

    return (
        SlashCommand("copy", "copy an answer's Markdown", partial(_copy, console=console), "[N]", group="Conversation"),
        SlashCommand("find", "search this session's text", find, "[WORDS]", group="Conversation", is_parallel=True),
        SlashCommand("login", "enter a provider's API key", login, "[PROVIDER]", group="Model"),
        SlashCommand("logout", "remove a provider's API key", logout, "PROVIDER", group="Model"),
        trust_command(controller, opener),
        SlashCommand("theme", "choose the colours", theme, "[NAME]", forms=("", "NAME", "NAME keep"), group=PROGRAM),
    )


def trust_command(controller: TerminalController, opener: TerminalOpener) -> SlashCommand:
    async def trust(host: CommandHost, argument: str) -> str:
        controller.require_idle()
        review = await asyncio.to_thread(opener.review_project)
        if isinstance(review, str):  # there is nothing to trust
            return review
        shown, accept = review
        controller.view.print_line(f"{shown}\n")
        answers = [("No, not now", "nothing is changed"), ("Yes, trust these files", "until they change")]
        if await host.choose("Trust the project's files as they are now?", answers) != 1:  # 1: yes
            return "Nothing was trusted."
        accepted = await asyncio.to_thread(accept)
        await controller.reload()
        return f"{accepted}\nThis session uses them now, and asks again for what you had allowed for the session."

    return SlashCommand("trust", "review the project's own settings, and use them", trust, group="Permissions")


async def _theme(host: CommandHost, argument: str, appearance: Appearance) -> str:
    """Use a theme in this session or, with `NAME keep`, from now on; without a name, let the person choose."""
    choice, keeps = split_keep(argument)
    if not choice:
        options = [(name, THEMES_IN_WORDS.get(name, "your own")) for name in appearance.themes]
        current = appearance.themes.index(appearance.choice) if appearance.choice in appearance.themes else None
        if (picked := await host.choose("Theme", options, current=current)) is None:
            return marked_list(options, current, "To choose another: /theme NAME")
        choice = appearance.themes[picked]
    if choice not in appearance.themes:
        raise UsageError(f"There is no theme {choice!r}. Choose one of {', '.join(appearance.themes)}.")
    appearance.use(choice)
    if keeps:
        return f"Theme {choice}. {await host.store_setting('terminal.theme', choice)}"
    return f"Theme {choice}. For this session only. To make it the default: /theme {choice} keep"


async def _copy(host: CommandHost, argument: str, console: Console) -> str:
    """Copy an answer with OSC 52, which the terminal carries out, and with the first program that succeeds."""
    if argument and not argument.isdecimal():
        raise UsageError("Usage: /copy [NUMBER]. Answer 1 is the newest.")
    text = _answer(host, int(argument or 1))
    data = text.encode()
    if is_short := len(data) <= MAX_OSC_52_BYTES:
        console.write_codes(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    outputs = run_clipboard_programs(_CLIPBOARDS, console.environment, stdin=data)  # of each program that succeeds
    if await anext(outputs, None) is None and not is_short:  # neither a program nor the terminal has copied it
        raise UserError("The answer is too long for the terminal's clipboard. To write it to a file: /export")
    return f"Copied {len(text):,} characters."


async def _find(host: CommandHost, words: str, controller: TerminalController, dialogs: Dialogs) -> str:
    """List the prompts, or the parts that contain the typed words; show the chosen part in the pager."""
    text = SessionText(host.session.snapshot().conversation.entries)
    with controller.view.activity.hide_command_rows():
        chosen = await dialogs.pick(SearchList("Search this session:", text.search, words))
    if chosen is not None:
        page, line = text.page_at(chosen)
        await dialogs.show_in_pager(page, line=line)
    return ""


def argument_options(
    name: str, typed: str, *, controller: TerminalController, opener: TerminalOpener, appearance: Appearance
) -> list[tuple[str, str]]:
    """Return the values of a command's argument that contain the typed text, each with a note."""
    sources: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
        "theme": lambda: ((choice, "") for choice in appearance.themes),
        "effort": lambda: ((effort, "") for effort in get_args(Effort)),
        "agents": lambda: (
            (f"{verb} {id}", "") for id in controller.view.activity.agents for verb in ("open", "show", "stop", "tell")
        ),
        "help": lambda: ((command.name, command.help) for command in controller.commands),
        "model": opener.known_models,
    }
    return [(value, note) for value, note in sources.get(name, tuple)() if typed.lower() in value.lower()]


def _answer(host: CommandHost, number: int) -> str:
    """Return the text of an answer; 1 is the newest. Raises `UsageError`."""
    answers: list[str] = []
    is_continued = False
    for entry in host.session.snapshot().conversation.path:
        match entry.body:
            case User() as user:
                is_continued = user == reminder(GO_ON)  # the next message is the rest of an answer that broke off
            case Assistant(content=content):
                before = answers.pop() if is_continued and answers else ""
                answers.append(before + "".join(block.text for block in content if isinstance(block, Text)))
                is_continued = False
    answers = [text for text in answers if text.strip()]
    if not 1 <= number <= len(answers):
        raise UsageError(f"There are {len(answers)} answers." if answers else "There is no answer to copy yet.")
    return answers[-number]
