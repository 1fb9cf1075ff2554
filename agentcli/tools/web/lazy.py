"""Access to the web that is made when it is first used: importing what it needs takes 55 ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentcli.tools.web.access import SearchResult, WebAccess, WebPage

if TYPE_CHECKING:
    from agentcli.safety.addresses.judge import UrlVerdict


class LazyWeb:
    """Implements `WebAccess`; `make` gives what really does it."""

    def __init__(self, make: Callable[[], WebAccess]) -> None:
        self._make = make
        self._made: WebAccess | None = None
        self._typed: list[str] = []

    def judge(self, url: str) -> UrlVerdict:
        return self._web.judge(url)

    def note_typed(self, text: str) -> None:
        if self._made is not None:
            self._made.note_typed(text)
        elif "://" in text:
            self._typed.append(text)

    async def fetch(self, url: str, *, max_chars: int) -> WebPage:
        return await self._web.fetch(url, max_chars=max_chars)

    async def search(self, query: str, *, max_results: int) -> Sequence[SearchResult]:
        return await self._web.search(query, max_results=max_results)

    @property
    def _web(self) -> WebAccess:
        if self._made is None:
            self._made = self._make()
            for text in self._typed:
                self._made.note_typed(text)
            self._typed.clear()
        return self._made


if TYPE_CHECKING:
    _: type[WebAccess] = LazyWeb
