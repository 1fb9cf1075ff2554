"""What the web tools need of a session: a Protocol, and the records it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from agentcli.safety.addresses.judge import UrlVerdict


class WebPage(msgspec.Struct, frozen=True):
    """A fetched page as text. `url` is where it was found in the end; `total_chars` counts what `text` was cut from.

    `notes` say what else was left out, each a sentence.
    """

    url: str
    title: str
    content_type: str
    text: str
    total_chars: int
    notes: tuple[str, ...] = ()

    @property
    def truncated(self) -> bool:
        return len(self.text) < self.total_chars or bool(self.notes)


class SearchResult(msgspec.Struct, frozen=True):
    title: str
    url: str
    excerpt: str


class WebAccess(Protocol):
    """The web as one session may use it."""

    def judge(self, url: str) -> UrlVerdict:
        """Whether an address may be fetched at once, when the person agrees, or never; asks nothing of the network."""

    def note_typed(self, text: str) -> None:
        """Learn the addresses in what the person wrote: to fetch these nobody need be asked."""

    async def fetch(self, url: str, *, max_chars: int) -> WebPage:
        """The page at an address the person or the rules have agreed to, cut to `max_chars` characters.

        Raises `ToolError`, also for an address that no agreement opens.
        """

    async def search(self, query: str, *, max_results: int) -> Sequence[SearchResult]:
        """Raises `ToolError`."""
