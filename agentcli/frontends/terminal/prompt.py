"""Where the person types: history, completion of commands, several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth

from agentcli.agent.commands.command import Commands


class CommandCompleter(Completer):
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            for command in self._commands:
                if command.name.startswith(text[1:]):
                    yield Completion(f"/{command.name}", -len(text), display_meta=command.help)


class Input:
    """The input line. Enter sends; Alt-Enter, Ctrl-J or a backslash before Enter begin a new line."""

    def __init__(self, commands: Commands, history_file: Path | None, *, colours: bool) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(history_file),
            completer=CommandCompleter(commands),
            complete_while_typing=True,
            key_bindings=_keys(),
            multiline=True,
            enable_suspend=True,
            erase_when_done=False,
            prompt_continuation="  ",
            color_depth=None if colours else ColorDepth.DEPTH_1_BIT,
            reserve_space_for_menu=5,
        )
        # A terminal that does not answer where its cursor is works all the same; the person need not be told.
        self._session.app.renderer.cpr_not_supported_callback = None

    async def read(self, *, first_frame: Callable[[], None] | None = None) -> str:
        """What the person sent. Raises `EOFError` for Ctrl-D and `KeyboardInterrupt` for Ctrl-C on an empty line."""
        return await self._session.prompt_async("› ", pre_run=first_frame)

    def stop(self) -> None:
        """End a `read` that is under way, as Ctrl-D would."""
        if self._session.app.is_running:
            self._session.app.exit(exception=EOFError)

    async def ask(self, question: str) -> str:
        """A one-line answer, not kept in the history. Raises as `read` does."""
        asking: PromptSession[str] = PromptSession(history=InMemoryHistory())
        return await asking.prompt_async(question)


def _history(file: Path | None) -> History:
    if file is None:
        return InMemoryHistory()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # a full or read-only disk takes the history, not the session
    return FileHistory(str(file))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif buffer.text.strip():
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
