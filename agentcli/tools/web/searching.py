"""Searches the web through a provider; Tavily is the one there is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from agentcli.errors import ConfigError, ToolError, ToolErrorKind
from agentcli.llm.errors import AuthError, ConnectionFailed, ProviderError, Timeout
from agentcli.llm.http import HttpClient
from agentcli.safety.urls import BadUrl, parse_url
from agentcli.tools.web.hidden import visible_text
from agentcli.tools.web.web import SearchProvider, SearchResult

TAVILY_URL = "https://api.tavily.com"
MAX_QUERY_CHARS = 400  # characters; Tavily refuses longer ones
MAX_EXCERPT_CHARS = 1_000  # characters of one result


class Tavily:
    """Tavily's REST API (docs.tavily.com, /documentation/api-reference/endpoint/search) at `base_url`."""

    def __init__(self, api_key: str, *, base_url: str = TAVILY_URL, time_limit_s: float = 30.0) -> None:
        self._api_key, self._base_url, self._time_limit_s = api_key, base_url, time_limit_s

    async def search(self, query: str, max_results: int) -> Sequence[SearchResult]:
        try:
            client = HttpClient(self._base_url, {}, key=self._api_key, read_timeout=self._time_limit_s)
        except ConfigError as error:
            raise ToolError(str(error), kind="dependency_error") from error
        asked = {"query": query, "max_results": max_results, "search_depth": "basic"}
        try:
            async with asyncio.timeout(self._time_limit_s):
                answer = await client.fetch_json("/search", asked)
            found = msgspec.convert(answer, _TavilyAnswer).results
        except TimeoutError as error:
            raise ToolError("The search did not answer in time: try again.", kind="timeout") from error
        except msgspec.ValidationError as error:
            raise ToolError(f"The search answered in a form that cannot be read: {error}.") from error
        except ProviderError as error:
            raise _failure(error) from error
        finally:
            await client.aclose()
        return [SearchResult(row.title or "", row.url or "", row.content or "") for row in found]


async def search_web(provider: SearchProvider | None, query: str, *, max_results: int) -> tuple[SearchResult, ...]:
    """Results with plain texts and addresses that can be fetched, each address once. Raises `ToolError`."""
    query = " ".join(visible_text(query).split())
    if not query:
        raise ToolError("The query is empty.", kind="invalid_parameters")
    if len(query) > MAX_QUERY_CHARS:
        message = f"The query is longer than {MAX_QUERY_CHARS} characters: use fewer words."
        raise ToolError(message, kind="invalid_parameters")
    if provider is None:
        raise ToolError(
            "web_search needs a key of Tavily (free at https://app.tavily.com): ask the user to set the environment "
            "variable TAVILY_API_KEY and to start again. Until then, web_fetch reads pages whose address is known.",
            kind="dependency_error",
        )
    results: dict[str, SearchResult] = {}
    for found in await provider.search(query, max_results):
        try:
            url = str(parse_url(found.url))
        except BadUrl:
            continue
        title = " ".join(visible_text(found.title).split())[:300]
        excerpt = visible_text(found.excerpt).strip()[:MAX_EXCERPT_CHARS]
        results.setdefault(url, SearchResult(title or url, url, excerpt))
    return tuple(results.values())[:max_results]


class _TavilyResult(msgspec.Struct, frozen=True):
    title: str | None = None
    url: str | None = None
    content: str | None = None


class _TavilyAnswer(msgspec.Struct, frozen=True):
    results: list[_TavilyResult]


def _failure(error: ProviderError) -> ToolError:
    """Statuses after https://help.tavily.com/articles/8645538886-understanding-http-errors (read 2026-11)."""
    said, status, wait = _error_message(error), error.status, error.retry_after
    match error:
        case Timeout():
            return ToolError("The search did not answer in time: try again.", kind="timeout")
        case ConnectionFailed():
            return ToolError(f"The search cannot be reached. {said}", kind="transient_error")
        case _ if status is None and not isinstance(error, AuthError):
            return ToolError("The search answered with something that is not Tavily's: tell the user.")
    kind, advice = _REFUSALS.get(status or 401, ("execution_error", "Tell the user."))
    if status == 429 or (status or 0) >= 500:
        kind = "rate_limit" if status == 429 else "transient_error"
        advice = f"Try again in {wait:g} s." if wait is not None else "Try again later."
    return ToolError(f"Tavily refused the search: {said} {advice}", kind=kind, code=str(status), retry_after=wait)


_REFUSALS: dict[int, tuple[ToolErrorKind, str]] = {
    **dict.fromkeys((401, 403), ("permission_denied", "Ask the user to check TAVILY_API_KEY.")),
    **dict.fromkeys((402, 432, 433), ("permission_denied", "The plan's searches are used up: tell the user.")),
    **dict.fromkeys((400, 422), ("invalid_parameters", "Change the query.")),
}


def _error_message(error: ProviderError) -> str:
    """The message of an error; Tavily's own stands in `{"detail": {"error": …}}`."""
    text = str(error)
    try:
        detail = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        detail = {}
    said = visible_text(detail.get("error") or text).strip()[:300]
    return said if said.endswith((".", "!", "?")) else f"{said}."
