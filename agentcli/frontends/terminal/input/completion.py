"""Completes commands, their arguments and files while the person types."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit.application import get_app_or_none
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from agentcli.agent.commands.command import SlashCommand
from agentcli.conversation.mentions import PUNCTUATION
from agentcli.frontends.terminal.input.file_index import FileIndex, leads_out, paths_elsewhere

# The values that fit an argument as typed so far, and a note on each; a value replaces the whole argument.
Arguments = Callable[[str, str], Iterable[tuple[str, str]]]

_COMMAND = re.compile(r"/([^\s/]*)\Z")
_ARGUMENT = re.compile(r"/([^\s/]+) +(\S.*)?\Z")
# As conversation/mentions.py reads them: characters that end a plain mention need quotes.
_MENTION = re.compile(r"(?:^|(?<=\s))@(?:\"(?P<quoted>[^\"\n]*)|(?P<plain>[^\s\"'`,;]*))\Z")
_NEEDS_QUOTES = re.compile(r"[\s'`,;]")


class PromptCompleter(Completer):
    """Completes `/name` at the start of the input, its argument from `arguments`, and `@path` after white space."""

    def __init__(
        self, commands: Iterable[SlashCommand], arguments: Arguments, files: FileIndex, *, folder: Path, home: Path
    ) -> None:
        self._commands = commands
        self._arguments = arguments
        self._files = files
        self._folder, self._home = folder, home

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Commands and arguments; files need `get_completions_async`."""
        text, after = document.text_before_cursor, document.text_after_cursor
        if found := _COMMAND.match(text):
            typed = found[1]

            def rank(command: SlashCommand) -> int:
                if command.name.startswith(typed):
                    return 0
                return 1 if any(name.startswith(typed) for name in command.aliases) else 2

            fitting = (command for command in self._commands if any(typed in name for name in _names(command)))
            for command in sorted(fitting, key=rank):
                text = f"/{command.name}{_space_before(after)}"
                yield Completion(text, -len(typed) - 1, display=f"/{command.name}", display_meta=command.help)
        elif found := _ARGUMENT.match(text):
            name, typed = found[1], found[2] or ""
            for command in (command for command in self._commands if name in _names(command)):
                for value, note in self._arguments(command.name, typed):
                    yield Completion(value, -len(typed), display_meta=note)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        for completion in self.get_completions(document, complete_event):
            yield completion
        mention = _MENTION.search(document.text_before_cursor)
        if mention is None:
            return
        is_quoted = mention["quoted"] is not None
        query = (mention["quoted"] if is_quoted else mention["plain"]).removeprefix("./")
        if leads_out(query):
            paths = await asyncio.to_thread(paths_elsewhere, query, self._folder, self._home)
        else:
            paths = await self._files.match(query, is_wanted=lambda: _is_still_typed(document))
        for path in paths:
            text = _as_mention(path, is_quoted=is_quoted, after=document.text_after_cursor)
            yield Completion(text, -len(mention[0]), display=path)


def _names(command: SlashCommand) -> tuple[str, ...]:
    return (command.name, *command.aliases)


def _as_mention(path: str, *, is_quoted: bool, after: str) -> str:
    """Write a path as a mention; a folder's quotes stay open, so that completion goes on behind its slash."""
    needs_quotes = is_quoted or bool(_NEEDS_QUOTES.search(path))
    if path.endswith("/"):
        return f'@"{path}' if needs_quotes else f"@{path}"
    if not needs_quotes:
        return f"@{path}{_space_before(after)}"
    return f'@"{path}' if after.startswith('"') else f'@"{path}"{_space_before(after)}'


def _space_before(after: str) -> str:
    """The space behind a whole name, where none is there yet."""
    return "" if after[:1].isspace() else " "


def _is_still_typed(document: Document) -> bool:
    """True until the text changes: prompt_toolkit lets a completion run on, and asks again only after its end."""
    app = get_app_or_none()
    return app is None or app.current_buffer.document.text_before_cursor == document.text_before_cursor


# At the beginning of a word: `me@example.com` is none, nor is anything in quotation marks or in code.
_NAME = re.compile(r"(?:^|(?<=[\s(]))@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<plain>[^\s\"'`,;]+))")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_LINES = re.compile(r":\d+(?:-\d+)?\Z")  # those that are attached
_ANCHOR = re.compile(r"#L?\d+(?:-L?\d+)?\Z")
_NO_PATH = re.compile(r"[(){}\[\]<>=|\\$*#@:?!&%]")  # in calls, versions, addresses
_EXTENSIONS = frozenset(
    "py pyi ipynb js mjs cjs jsx ts tsx vue svelte html htm css scss less json jsonl json5 toml yaml yml xml ini cfg "
    "conf env lock md mdx rst txt tex csv tsv sql sh bash zsh fish ps1 bat c h cc cpp cxx hpp rs go java kt kts scala "
    "rb php pl lua swift m mm cs fs ex exs erl hs ml clj dart zig nim proto graphql tf gradle cmake mk diff log pdf "
    "png jpg jpeg gif webp svg".split()
)


def missing_files(typed: str, folder: Path) -> list[str]:
    """The names in a prompt that are no file or folder, but for decorators, people, packages and addresses."""
    found = list(_NAME.finditer(_CODE.sub(" ", typed)))
    names = {match["quoted"] or match["plain"].rstrip(PUNCTUATION): bool(match["quoted"]) for match in found}
    return [name for name, is_quoted in names.items() if name and _is_missing(name, folder, is_quoted=is_quoted)]


def _is_missing(name: str, folder: Path, *, is_quoted: bool) -> bool:
    if _exists(name, folder) or _exists(_LINES.sub("", name), folder):
        return False
    if is_quoted or (_ANCHOR.search(name) and _exists(_ANCHOR.sub("", name), folder)):
        return True
    if name.startswith("/") or _NO_PATH.search(name):
        return False
    first, *rest = name.split("/")
    extension = name.rstrip("/").rpartition("/")[2].rpartition(".")[2]
    return (
        first in ("~", ".", "..")
        or ("." in name and extension.lower() in _EXTENSIONS)
        or (len(rest) > 1 and _exists(first, folder))
    )


def _exists(name: str, folder: Path) -> bool:
    try:
        return (folder / Path(name).expanduser()).exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, nobody's home folder
        return False
