"""Slash commands: their records, the interface of their host, and the parsing of a typed command."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from agentcli.agent.calls.model import fire
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError, nearest
from agentcli.llm.messages import Text

SKILLS = "Skills"  # the heading of skills in /help
_ADDED_GROUPS = ("Your own", SKILLS, "Agents", "MCP")
Topic = Literal["config", "doctor", "hooks"]
# Commands that only the terminal has. In other front ends, an error says so.
SCREEN_COMMANDS = ("find", "theme", "copy", "login", "logout", "remote", "trust")


class CommandHost(Protocol):
    """The front end of a command: its session, ways to talk to the person, and other sessions."""

    @property
    def session(self) -> Session: ...

    @property
    def stored_sessions(self) -> SessionStore: ...

    async def sessions(self) -> Sequence[SessionInfo]:
        """Return the stored sessions of this directory, newest first."""

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        """Open a stored session (with `fork`, a copy), or for None a new one. Raises `UserError`, `SessionInUse`."""

    async def check_model(self, name: str) -> str:
        """Return a sentence about `provider/model`, and ask for a missing key. Raises `UserError` if it is unusable."""

    async def models(self) -> Sequence[tuple[str, str]]:
        """Return the known models as `provider/model`, each with its window, prices, and any missing key."""

    async def store_setting(self, key: str, value: Any) -> str:
        """Write `section.key` to the person's settings, or remove it with None; return where. Raises `UserError`."""

    async def choose(self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None) -> int | None:
        """Let the person choose an option (label, detail); return its index. None without a picker."""
        return None

    async def confirm(self, shown: str, question: str) -> bool | None:
        """Show a text and ask a question about it. If nobody can be asked, show nothing and return None."""
        return None

    async def describe(self, topic: Topic) -> str:
        """Return a text about a topic that only the front end knows, such as the settings in use."""

    async def document(self, file: str) -> str:
        """Return this conversation, with secrets masked, in the format of the file's ending. Raises `UsageError`."""

    async def edit(self, text: str) -> str | None:
        """Open a text in the person's editor and return the result; None without a terminal. Raises `UserError`."""
        return None

    def open_agent(self, id: str) -> None:
        """Show a running subagent as it works. Raises `UsageError` without a screen."""

    def put_into_input(self, text: str) -> None:
        """Put a text into the input, for the person to change and send, if the front end has one."""
        return

    def leave(self) -> None:
        """End the front end after this command."""


class AsPrompt(Struct, frozen=True):
    """A prompt to submit, answered by `model` if given. In `more`, written by others, `@file` attaches nothing."""

    text: str
    model: str = ""
    more: tuple[Text, ...] = ()


class FileDiff(Struct, frozen=True):
    """The unified diff of one file."""

    path: str
    diff: str


class AsDiff(Struct, frozen=True):
    """The outcome of a command that is shown as changes to files, with a `note` below them."""

    files: tuple[FileDiff, ...]
    note: str = ""

    @property
    def text(self) -> str:
        return "\n".join(part.rstrip("\n") for part in (*(file.diff for file in self.files), self.note) if part)


Outcome = str | AsPrompt | AsDiff  # a text to show (empty: nothing), a prompt to submit, changes to show


class SlashCommand(Struct, frozen=True):
    """A slash command. `run` gets the rest of the line."""

    name: str
    help: str
    run: Callable[[CommandHost, str], Awaitable[Outcome]]
    argument: str = ""  # a hint such as "[MODEL]"; empty if the command takes no argument
    aliases: tuple[str, ...] = ()
    is_parallel: bool = False  # the command changes nothing, so later messages need not wait for its end
    forms: tuple[str, ...] = ()  # the arguments that it takes, for its help
    group: str = "Your own"  # its heading in /help

    async def execute(self, host: CommandHost, argument: str) -> Outcome:
        """Run the command. Raises `UserError`, also if a tool's code that it uses fails, or a hook rejects it."""
        try:
            outcome = await self.run(host, argument)
        except ToolError as error:
            raise UserError(str(error)) from error
        if isinstance(outcome, AsPrompt):
            about = {
                "expansion_type": "mcp_prompt" if self.name.startswith("mcp__") else "slash_command",
                "command_name": self.name,
                "command_args": argument,
                "prompt": outcome.text,
            }
            answer = await fire(host.session.runtime.calls, "UserPromptExpansion", subject=self.name, **about)
            if answer.blocks or answer.stops:
                raise UserError(f"A hook refused /{self.name}: {answer.reason or 'no reason given.'}")
        return outcome


def numbered_list(options: Sequence[tuple[str, str]], instruction: str, *, marks: Sequence[str] = ()) -> str:
    """Return options as lines, numbered or with these marks, and an `instruction` to choose one without a picker."""
    width = max(len(label) for label, _ in options)
    marks = marks or [f"  {n:>2} " for n in range(1, len(options) + 1)]
    rows = [f"{mark} {label:<{width}}  {detail}".rstrip() for mark, (label, detail) in zip(marks, options, strict=True)]
    return "\n".join([*rows, instruction])


def marked_list(options: Sequence[tuple[str, str]], current: int | None, instruction: str) -> str:
    """Return the values of a setting as lines, the current one marked, and an `instruction` to change it."""
    return numbered_list(options, instruction, marks=["●" if n == current else " " for n in range(len(options))])


def split_keep(argument: str) -> tuple[str, bool]:
    """Return a command's argument without its last word if that is `keep`, and True if it was."""
    *words, last = argument.split() or [""]
    return (" ".join(words), True) if last == "keep" else (argument.strip(), False)


def number_in(argument: str, count: int, what: str) -> int:
    """Return the index, from 0, of a number that the person counts from 1. Raises `UsageError`."""
    if not argument.isdecimal() or not 1 <= int(argument) <= count:
        raise UsageError(f"There is no {what} {argument}. Use a number from 1 to {count}." if count else f"No {what}.")
    return int(argument) - 1


class CommandSet:
    """Commands by name and alias. `explain_missing` returns why a command does not exist; "" if it knows no reason."""

    def __init__(self, commands: Iterable[SlashCommand]) -> None:
        self._commands = list(commands)
        self._by_name = {name: c for c in self._commands for name in (c.name, *c.aliases)}
        self.explain_missing: Callable[[str], str] = lambda name: ""

    def __iter__(self) -> Iterator[SlashCommand]:
        return iter(self._commands)

    @property
    def names(self) -> Collection[str]:
        return self._by_name.keys()  # includes aliases

    def add(self, command: SlashCommand) -> None:
        self._commands.append(command)
        self._by_name |= dict.fromkeys((command.name, *command.aliases), command)

    def remove_added(self) -> None:
        """Remove the commands that come from settings, skills, MCP servers and subagents."""
        self._commands = [command for command in self._commands if command.group not in _ADDED_GROUPS]
        self._by_name = {name: one for name, one in self._by_name.items() if one in self._commands}

    def is_command(self, text: str) -> bool:
        """Return True for a slash command, even a mistyped one; False for other texts, such as /etc/hosts."""
        try:
            return self.parse(text) is not None
        except UsageError:
            return True

    def is_known(self, text: str) -> bool:
        """Return True for a text that begins with a command's name."""
        word = text.partition(" ")[0]
        return word.startswith("/") and word[1:] in self._by_name

    def parse(self, text: str) -> tuple[SlashCommand, str] | None:
        """Return the command and its argument; None for other texts, such as /etc/hosts. Raises `UsageError`."""
        first, *others = text.split(None, 1) or ("",)
        rest = "".join(others)  # `others` has at most one part
        if not first.startswith("/") or "/" in first[1:] or len(first) < 2:
            return None
        name = first[1:]
        if found := self._by_name.get(name):
            if rest.strip() and not found.argument:
                raise UsageError(f"/{name} takes no arguments. Remove {rest.strip()[:80]!r}.")
            return found, rest.strip()
        if not name[0].isalnum():  # a text such as `/-` or `/*` is not a mistyped command
            return None
        if name in SCREEN_COMMANDS:
            raise UsageError(f"/{name} works only in the terminal.")
        if reason := self.explain_missing(name):
            raise UsageError(reason)
        near = nearest(name, (command.name for command in self._commands), cutoff=0.6)
        hint = f" Did you mean /{near}?" if near else ""
        raise UsageError(f"Unknown command /{name}.{hint} To list all: /help")
