"""The web as one session may use it: made once from the settings, used by the web tools and the permission step."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentcli.errors import ToolError
from agentcli.safety.addresses.judge import UrlVerdict, judge_url
from agentcli.safety.addresses.urls import BadUrl, parse_url, urls_in
from agentcli.tools.web.access import SearchResult, WebAccess, WebPage
from agentcli.tools.web.fetching import Fetcher, FetchLimits, Resolver
from agentcli.tools.web.pages import read_page, require_readable
from agentcli.tools.web.searching import SearchProvider, search_web


class Web:
    """`granted_hosts` are the person's own (`localhost:3000`, `*.example.com`; see `judge_url`), never a project's.

    `tls` replaces the certificates this machine trusts; `resolver` and `limits` have defaults fit for people.
    """

    def __init__(
        self,
        *,
        granted_hosts: Sequence[str] = (),
        search_provider: SearchProvider | None = None,
        resolver: Resolver | None = None,
        limits: FetchLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._granted = tuple(granted_hosts)
        self._search_provider = search_provider
        self._known: set[str] = set()
        self._fetcher = Fetcher(
            judge=self.judge,
            accepts=require_readable,
            granted_hosts=self._granted,
            resolver=resolver,
            limits=limits,
            tls=tls,
        )

    def judge(self, url: str) -> UrlVerdict:
        return judge_url(url, granted_hosts=self._granted, known_urls=self._known)

    def note_typed(self, text: str) -> None:
        """Learn the addresses in what the person wrote: to fetch these, and only these, nobody need be asked."""
        self._known.update(urls_in(text))

    async def fetch(self, url: str, *, max_chars: int) -> WebPage:
        try:
            parsed = parse_url(url)
        except BadUrl as error:
            raise ToolError(f"Not fetched: {error}.", kind="invalid_parameters") from error
        return await read_page(await self._fetcher.fetch(parsed), max_chars=max_chars)

    async def search(self, query: str, *, max_results: int) -> tuple[SearchResult, ...]:
        results = await search_web(self._search_provider, query, max_results=max_results)
        self._known.update(result.url for result in results)
        return results


if TYPE_CHECKING:
    _: WebAccess = Web()
