"""Completes commands, their arguments and mentions of files while the person types."""

import asyncio
import heapq
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.application import get_app_or_none
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from agentcli.agent.commands.command import SlashCommand
from agentcli.errors import ToolError
from agentcli.patterns import lazy_pattern
from agentcli.settings.short_program import run_short_program
from agentcli.tools.sandbox import find_rg

MAX_LISTED_BYTES = 64 * 1024 * 1024  # of paths
FRESH_S = 10.0  # a later query lists the files again
FIRST_LISTING_S = 1.0  # the longest that a query waits for the first listing
LISTING_TIMEOUT_S = 60.0
_BLOCK_PATHS = 1_000  # searched before the event loop runs again, in a millisecond or two
Rank = tuple[int, int, str]  # the tier of a path, 0 for the best, and its place among the paths of that tier
# Given a command's name and the typed argument, returns the values that may replace it, each with a note.
Arguments = Callable[[str, str], Iterable[tuple[str, str]]]
_COMMAND = lazy_pattern(r"/([^\s/]*)\Z")
_ARGUMENT = lazy_pattern(r"/([^\s/]+) +(\S.*)?\Z")
# As conversation/mentions.py reads them: characters that end a plain mention need quotes.
_MENTION = lazy_pattern(r"(?:^|(?<=\s))@(?:\"(?P<quoted>[^\"\n]*)|(?P<plain>[^\s\"'`,;]*))\Z")
# A name with a quotation mark cannot be written as a mention, and one with control characters cannot be shown.
_UNSHOWABLE = lazy_pattern('[\x01-\x1f\x7f-\x9f"\ufffd]')


class PromptCompleter(Completer):
    """Completes `/name` at the start of the input, its argument from `arguments`, and `@path` after white space."""

    def __init__(self, commands: Iterable[SlashCommand], arguments: Arguments, files: "FileIndex") -> None:
        self._commands, self._arguments, self._files = commands, arguments, files

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield commands and arguments; files need `get_completions_async`."""
        text, after = document.text_before_cursor, document.text_after_cursor
        if found := _COMMAND.match(text):
            typed = found[1]
            fitting = [command for command in self._commands if any(typed in name for name in _names(command))]
            # Commands whose name begins with the typed text come first, then those with such an alias.
            fitting.sort(key=lambda command: not any(name.startswith(typed) for name in _names(command)))
            fitting.sort(key=lambda command: not command.name.startswith(typed))
            for command in fitting:
                name = f"/{command.name}"
                yield Completion(name + _separator(after), -len(text), display=name, display_meta=command.help)
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
        if (mention := _MENTION.search(document.text_before_cursor)) is None:
            return
        is_quoted = mention["quoted"] is not None
        query = (mention["quoted"] if is_quoted else mention["plain"]).removeprefix("./")
        for path in await self._files.match(query, is_wanted=lambda: _is_current(document)):
            text = _as_mention(path, is_quoted=is_quoted, after=document.text_after_cursor)
            yield Completion(text, -len(mention[0]), display=path)


def _names(command: SlashCommand) -> tuple[str, ...]:
    return (command.name, *command.aliases)


def _as_mention(path: str, *, is_quoted: bool, after: str) -> str:
    """Write a path as a mention; a folder's quotes stay open, so that completion continues after its slash."""
    quote = '"' if is_quoted or re.search(r"[\s'`,;]", path) else ""
    stays_open = path.endswith("/") or (quote and after.startswith(quote))
    return f"@{quote}{path}" if stays_open else f"@{quote}{path}{quote}{_separator(after)}"


def _separator(following_text: str) -> str:
    return "" if following_text[:1].isspace() else " "


def _is_current(document: Document) -> bool:
    """Return True until the text changes: prompt_toolkit does not cancel an outdated completion."""
    app = get_app_or_none()
    return app is None or app.current_buffer.document.text_before_cursor == document.text_before_cursor


class FileIndex:
    """The paths of a project's files and folders, listed at the first query; folders end in a slash."""

    def __init__(
        self, list_files: Callable[[], Awaitable[Sequence[str]]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list_files, self._clock = list_files, clock
        self._paths: Sequence[str] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._listed_at = float("-inf")

    async def match(self, query: str, limit: int = 12, *, is_wanted: Callable[[], bool] = lambda: True) -> list[str]:
        """Return the best matches, best first; none as soon as `is_wanted` returns False.

        A name that begins with the query precedes one that holds it, then a path that holds it, then one with its
        letters in order; shorter paths first. An empty query, or a folder's path, gives the folder's contents.
        """
        is_listing = self._listing is not None and not self._listing.done()
        if not is_listing and self._clock() - self._listed_at > FRESH_S:
            self._listing = asyncio.get_running_loop().create_task(self._list())
        if self._paths is None and self._listing is not None:
            await asyncio.wait([self._listing], timeout=FIRST_LISTING_S)
        pattern, paths = _Pattern(query), self._paths or ()
        rankings = (pattern.rank_entry, pattern.rank) if not query or query.endswith("/") else (pattern.rank,)
        for rank_of in rankings:  # the second one is used if the folder has no such entry
            best: list[tuple[Rank, str]] = []
            for start in range(0, len(paths), _BLOCK_PATHS):
                if not is_wanted():
                    return []
                ranks = ((rank_of(path), path) for path in paths[start : start + _BLOCK_PATHS])
                matches = [(rank, path) for rank, path in ranks if rank is not None]
                best = heapq.nsmallest(limit, [*best, *matches])
                await asyncio.sleep(0)
            if best:
                return [path for _, path in best]
        return []

    async def aclose(self) -> None:
        if self._listing is not None and not self._listing.done():
            self._listing.cancel()
            await asyncio.wait([self._listing])

    async def _list(self) -> None:
        files: Sequence[str] = ()
        with suppress(OSError, ToolError):  # without files, only completion is missing
            files = await self._list_files()
        self._paths = await asyncio.to_thread(_with_folders, files)
        self._listed_at = self._clock()


async def ripgrep_files(root: Path) -> Sequence[str]:
    """List the files below `root` that no ignore rule hides, relative to it. Raises `ToolError` and `OSError`."""
    argv = [find_rg(), *"--no-config --no-messages --no-require-git --files --hidden --null --glob=!.git".split()]
    end = await run_short_program(argv, timeout_s=LISTING_TIMEOUT_S, max_bytes=MAX_LISTED_BYTES, cwd=root)
    listed = end.stdout.decode(errors="replace").split("\0")[:-1]
    return await asyncio.to_thread(lambda: [name for name in listed if not _UNSHOWABLE.search(name)])


def _with_folders(files: Sequence[str]) -> Sequence[str]:
    folders: set[str] = set()
    for folder in {path.rpartition("/")[0] for path in files}:
        while folder and f"{folder}/" not in folders:
            folders.add(f"{folder}/")
            folder = folder.rpartition("/")[0]
    return [*files, *folders]


class _Pattern:
    """A query. A path's rank is None if it does not match; the lowest rank is best."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._ignores_case = query == query.lower()
        self._letters_in_order = re.compile("".join(rf"[^{letter}]*{letter}" for letter in map(re.escape, query)))
        # The beginnings of folders: `fr/te` matches in `agentcli/frontends/terminal`.
        self._folders = re.compile("(?:^|/)" + "[^/]*/".join(map(re.escape, query.split("/"))))

    def rank_entry(self, path: str) -> Rank | None:
        """Return the rank among the entries of the folder that the query names; hidden entries come last."""
        compared = path.lower() if self._ignores_case else path
        name = compared.removeprefix(self._query).removesuffix("/")
        is_entry = compared.startswith(self._query) and name and "/" not in name
        return (0, int(name.startswith(".")), name.lower()) if is_entry else None

    def rank(self, path: str) -> Rank | None:
        compared = path.lower() if self._ignores_case else path
        if path == self._query or not self._letters_in_order.match(compared):
            return None
        return self._tier(compared), len(path), path

    def _tier(self, path: str) -> int:
        """Return how well the query fits a path, from 0, the best, to 3.

        0: the name (of a query with a slash: a part of the path) begins with the query. 1: the name holds it, or its
        parts begin names of folders. 2: the path holds it. 3: the path only has its letters in their order.
        """
        query = self._query
        name_start = path.rfind("/", 0, -1) + 1  # a folder's path also ends in a slash
        if "/" in query:
            is_tier_0, is_tier_1 = path.startswith(query) or f"/{query}" in path, bool(self._folders.search(path))
        else:
            is_tier_0, is_tier_1 = path.startswith(query, name_start), path.find(query, name_start) >= 0
        return (is_tier_0, is_tier_1, query in path, True).index(True)  # the first that is true
