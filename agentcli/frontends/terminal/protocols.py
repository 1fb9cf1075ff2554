"""Defines the terminal's two seams: to the program that starts it, and to the screen, live or plain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agentcli.agent.commands.command import ChoiceIndex
from agentcli.agent.events import AnyQuestion
from agentcli.agent.session import Session
from agentcli.errors import UserError
from agentcli.frontends.hosts import SessionOpener
from agentcli.llm.messages import Block


class NothingChosen(UserError):
    """The person left a list. The command that asked ends without a message."""


class TerminalOpener(SessionOpener, Protocol):
    """A `SessionOpener` that can also set up a model and keys with the person; `root` is the project's folder."""

    root: Path

    async def first(self, terminal: TerminalActions) -> Session:
        """Open the session that the command line means; ask which model if none is set up. Raises `UserError`."""

    def known_models(self) -> Sequence[tuple[str, str]]:
        """Return the models of the table as `provider/model`, with a note on each."""

    async def ask_key(self, terminal: TerminalActions, provider: str = "") -> str:
        """Ask for a key of a provider, or of one the person chooses. Return a sentence on it, empty without a key."""

    def forget_key(self, provider: str) -> str:
        """Remove a stored or typed key; return a sentence on it. Raises `UserError`."""

    def introduction(self) -> tuple[str, Sequence[str]]:
        """Return the program and its folder in one line, and the instruction files it has read there."""

    async def aclose(self) -> None:
        """Release what the sessions share, once they are closed."""


class TerminalActions(Protocol):
    """Everything that differs between a live screen and a plain one."""

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        """Let the person choose one of the (label, detail) pairs; None when they leave."""

    async def ask_secret(self, question: str) -> str | None:
        """Ask for text that is neither shown nor stored; None when nothing was typed."""

    async def run_outside(self, arguments: Sequence[str]) -> None:
        """Run a program that has the terminal to itself."""

    async def edit(self, text: str) -> str | None:
        """Return the text as the person's editor left it; None where none can be shown. Raises `UserError`."""
        return None

    async def run_own(self, command: str, *, to_model: bool) -> None:
        """Run a shell command of the person's own in the session."""

    def put_into_input(self, text: str) -> None: ...

    def return_prompts(self, prompts: Sequence[Sequence[Block]]) -> None:
        """Put prompts that the model never got back into the input; a plain terminal still shows them."""
        return

    def ask_question(self, question: AnyQuestion) -> None:
        """Ask the person; the answer is submitted to the session when it comes."""

    def forget_question(self, id: str) -> None:
        """Withdraw a question that was decided otherwise."""

    def session_opened(self) -> None:
        """Withdraw the questions of the session before; another one is shown from now on."""

    def changed(self) -> None:
        """Draw again soon."""

    def turn_ended(self, why: str) -> None:
        """React to the end of a turn; `why` is "done", "failed" or "interrupted"."""

    def await_prompt(self) -> None:
        """Show that the next prompt can be typed: a command is done, and no turn runs."""

    def leave(self) -> None: ...
