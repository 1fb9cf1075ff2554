"""Defines the web as one session may use it. `pages` fetches and searches; only a call imports it, in 55 ms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from agentcli.safety.urls import UrlVerdict


class WebPage(Struct, frozen=True):
    """A fetched page, at the address `url` behind all redirects. `notes` are sentences on what is missing."""

    url: str
    title: str
    content_type: str
    text: str
    total_chars: int
    notes: tuple[str, ...] = ()


class SearchResult(Struct, frozen=True):
    title: str
    url: str
    excerpt: str


class SearchProvider(Protocol):
    async def search(self, query: str, max_results: int) -> Sequence[SearchResult]:
        """Return at most `max_results` results, the best first, as the engine gives them. Raises `ToolError`."""


class Web:
    """The addresses that a session may fetch, and its search engine.

    `granted_hosts` are the person's own (`localhost:3000`, `*.example.com`; see `judge_url`), never a project's.
    `find_search` returns the search engine, or None. `resolve` returns every address of a name at a port, the best
    first, or raises OSError; without it the machine resolves names. `total_s` limits all of a fetch, `max_bytes` a
    decompressed page.
    """

    def __init__(
        self,
        *,
        granted_hosts: Sequence[str] = (),
        find_search: Callable[[], SearchProvider | None] = lambda: None,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]] | None = None,
        total_s: float = 30.0,
        max_bytes: int = 10_000_000,
    ) -> None:
        self.granted_hosts, self._find_search, self.resolve = tuple(granted_hosts), find_search, resolve
        self.total_s, self.max_bytes = total_s, max_bytes
        self._typed: list[str] = []
        self._known: set[str] = set()

    def note_typed(self, text: str) -> None:
        """Note the addresses in a text that the person wrote: they may be fetched without a question."""
        if "://" in text:
            self._typed.append(text)

    def judge(self, url: str) -> UrlVerdict:
        """Decide if an address may be fetched at once, when the person agrees, or never; uses no network."""
        from agentcli.safety.urls import judge_url, urls_in

        while self._typed:
            self._known.update(urls_in(self._typed.pop()))
        return judge_url(url, granted_hosts=self.granted_hosts, known_urls=self._known)

    async def fetch(self, url: str, *, max_chars: int) -> WebPage:
        """Return the page at an address that was permitted, cut to `max_chars` characters. Raises `ToolError`."""
        from agentcli.tools.web.pages import fetch_page

        return await fetch_page(self, url, max_chars=max_chars)

    async def search(self, query: str, *, max_results: int) -> tuple[SearchResult, ...]:
        """Return search results, whose addresses may then be fetched without a question. Raises `ToolError`."""
        from agentcli.tools.web.pages import search_web

        results = await search_web(self._find_search(), query, max_results=max_results)
        self._known.update(result.url for result in results)
        return results
