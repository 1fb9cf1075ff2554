"""The settings of `[compaction]`: when a conversation shrinks, and what is kept of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Strategy = Literal["auto", "truncate", "extract", "summarize"]


class CompactionSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conversation is compacted before a request that would fill the share `at` of the model's window.

    From `warn_at` on you are told how full it is. It shrinks to the share `target`, at most three quarters of `at`; the
    newest `keep_turns` turns stay whole. `cooldown` requests pass before it is compacted again. `strategy = "auto"`
    does nothing below `min_messages` messages, truncates, then extracts; from `summary_messages` on a summary takes the
    place of extracting, if a model has written it in the background for less than `summary_usd_per_hour`.

    Truncating leaves `result_chars` characters of an old result and `message_chars` of any other message. Extracting
    leaves notes for `low_turns` turns and thoughts for `medium_turns`. Your own messages always stay.

    `summary_model` writes summaries (unset: the model of the session; a small one never does), one for each turn of up
    to `summary_words` words and `summary_tokens` tokens, all of them within the share `summary_share` of the window.
    One that takes over `summary_timeout` seconds is not waited for. Summaries are reused for `cache_hours` hours, up to
    `cache_entries` of them. `enable_llm_summarization = false` switches them off.
    """

    at: Share = 0.8
    warn_at: Share = 0.7
    target: Share = 0.35
    strategy: Strategy = "auto"
    keep_turns: Annotated[int, Meta(ge=1)] = 5
    cooldown: Count = 3
    min_messages: Count = 20
    result_chars: Count = 200
    message_chars: Count = 100
    low_turns: Count = 3
    medium_turns: Count = 5
    enable_llm_summarization: bool = True
    summary_messages: Count = 50
    summary_model: Annotated[str, Meta(pattern=r"^$|^[^/\s]+/\S+$")] = ""
    summary_words: Annotated[int, Meta(ge=20)] = 300
    summary_tokens: Annotated[int, Meta(ge=50)] = 500
    summary_share: Share = 0.1
    summary_timeout: Annotated[float, Meta(gt=0, le=600)] = 10.0
    summary_usd_per_hour: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.10
    cache_hours: Annotated[float, Meta(gt=0, le=87_600)] = 24.0
    cache_entries: Annotated[int, Meta(ge=1)] = 1_000
