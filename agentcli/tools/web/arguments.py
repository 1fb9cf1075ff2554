"""What the web tools take, apart from what they do: a request needs these, only a call needs the rest."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from agentcli.tools.tool import OutputLevel


class WebFetch(Struct, frozen=True):
    url: str
    max_chars: Annotated[int, Meta(ge=1)] | None = None
    output_level: OutputLevel | None = None


class WebSearch(Struct, frozen=True):
    query: str
    max_results: Annotated[int, Meta(ge=1, le=20)] | None = None
