"""Prices, the model table, and token estimates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentcli.errors import UsageError
from agentcli.llm.media import TOKENS_PER_IMAGE
from agentcli.llm.messages import (
    Base64Source,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
)
from agentcli.llm.models import (
    UNKNOWN_MAX_OUTPUT,
    UNKNOWN_WINDOW,
    ModelInfo,
    ModelTable,
    Prices,
    bundled_models,
    estimate,
    estimate_text,
    model_rows,
    with_listed_limits,
)
from agentcli.models.choice import split_name
from tests.conformance.reading import asking
from tests.conformance.servers import ANTHROPIC_MODEL

HAIKU = bundled_models().find("anthropic", "claude-haiku-5-5")
OPUS = bundled_models().find("anthropic", "claude-opus-5-5")
PICTURE = Base64Source("image/png", "x" * 1_000)


# Prices


def test_each_kind_of_token_has_its_own_price() -> None:
    million = 1_000_000
    assert OPUS.cost(Usage(input_tokens=million)) == pytest.approx(4)
    assert OPUS.cost(Usage(output_tokens=million)) == pytest.approx(20)
    assert OPUS.cost(Usage(cache_read_input_tokens=million)) == pytest.approx(0.20)
    assert OPUS.cost(Usage(cache_creation_input_tokens=million)) == pytest.approx(5)
    assert OPUS.cost(
        Usage(cache_creation_input_tokens=million, cache_creation_1h_input_tokens=million)
    ) == pytest.approx(8)


def test_writes_for_five_minutes_and_for_an_hour_add_up() -> None:
    usage = Usage(
        1_000,
        500,
        cache_creation_input_tokens=3_000,
        cache_read_input_tokens=10_000,
        cache_creation_1h_input_tokens=1_000,
    )
    expected = (1_000 * 4 + 500 * 20 + 2_000 * 5 + 1_000 * 8 + 10_000 * 0.2) / 1e6
    assert OPUS.cost(usage) == pytest.approx(expected)


def test_haiku_costs_more_above_a_hundred_thousand_prompt_tokens_for_the_whole_request() -> None:
    at = Usage(
        input_tokens=40_000, output_tokens=1_000, cache_creation_input_tokens=10_000, cache_read_input_tokens=50_000
    )
    above = msgspec.structs.replace(at, input_tokens=40_001)
    assert at.prompt_tokens == 100_000
    assert HAIKU.cost(at) == pytest.approx((40_000 * 0.1 + 1_000 * 0.5 + 10_000 * 0.125 + 50_000 * 0.01) / 1e6)
    assert HAIKU.cost(above) == pytest.approx((40_001 * 0.5 + 1_000 * 2.5 + 10_000 * 0.625 + 50_000 * 0.05) / 1e6)
    hour = Usage(cache_creation_input_tokens=200_000, cache_creation_1h_input_tokens=200_000)
    assert HAIKU.cost(hour) == pytest.approx(0.2)


def test_output_alone_does_not_reach_the_dearer_band() -> None:
    assert HAIKU.cost(Usage(10, 200_000)) == pytest.approx((10 * 0.1 + 200_000 * 0.5) / 1e6)


def test_prices_that_are_not_given_follow_the_input_price() -> None:
    prices = Prices(input=2, output=8)
    assert prices.cost(Usage(1_000, 0, 1_000, 1_000, 500)) == pytest.approx(3_000 * 2 / 1e6)
    assert Prices(input=2, cache_write=3).cost(Usage(0, 0, 1_000, 0, 1_000)) == pytest.approx(1_000 * 3 / 1e6)


def test_a_price_the_provider_names_goes_before_the_table() -> None:
    assert OPUS.cost(Usage(1_000, 1_000, cost_usd=0.5)) == 0.5
    assert OPUS.cost(Usage(1_000, 1_000, cost_usd=0.0)) == 0.0
    assert ModelInfo("x", "openrouter").cost(Usage(1, 1, cost_usd=0.25)) == 0.25


@pytest.mark.parametrize("prompt_tokens", [1_000, 150_000])
def test_the_highest_rate_of_a_request_that_is_cached_for_an_hour_covers_its_cost(prompt_tokens: int) -> None:
    dearer = Prices(input=2, output=0, cache_write=2.5, cache_write_1h=4)
    prices = Prices(input=1, cache_write=1.25, cache_write_1h=2, above=100_000, higher=dearer)
    usage = Usage(cache_creation_input_tokens=prompt_tokens, cache_creation_1h_input_tokens=prompt_tokens)
    per_token, _ = prices.cached_for_an_hour().max_rates(prompt_tokens)
    assert prompt_tokens * per_token == pytest.approx(prices.cost(usage))


def test_without_a_price_there_is_no_cost() -> None:
    assert ModelInfo("x", "vllm").cost(Usage(1_000, 1_000)) is None
    assert bundled_models().find("local", "default").cost(Usage(1_000, 1_000)) == 0


@pytest.mark.parametrize(
    "row", [row for row in bundled_models() if row.provider == "anthropic"], ids=lambda row: row.id
)
def test_a_bundled_claude_s_cache_prices_follow_from_its_input_price(row: ModelInfo) -> None:
    prices = row.prices
    assert prices is not None
    assert prices.cache_write is not None
    assert prices.cache_write_1h is not None
    assert prices.cache_write == pytest.approx(prices.input * 1.25)
    assert prices.cache_write_1h == pytest.approx(prices.input * 2)
    assert prices.output == pytest.approx(prices.input * 5)
    assert prices.cache_read is not None
    assert prices.cache_read <= prices.input / 10
    assert row.max_output < row.window


# The table


def test_a_model_is_found_by_its_id_and_by_its_alias() -> None:
    assert bundled_models().find("anthropic", "opus") is bundled_models().find("anthropic", "claude-opus-5-5")
    assert bundled_models().find("anthropic", "claude-haiku-4-5-20251001").id == "claude-haiku-4-5"


def test_of_an_unknown_model_only_what_is_safe_is_assumed() -> None:
    info = bundled_models().find("openai", "gpt-7")
    assert (info.id, info.provider, info.is_known) == ("gpt-7", "openai", False)
    assert (info.window, info.max_output, info.prices, info.thinking) == (
        UNKNOWN_WINDOW,
        UNKNOWN_MAX_OUTPUT,
        None,
        "none",
    )
    assert not bundled_models().find("openai", "claude-opus-5-5").is_known


def test_a_person_s_row_replaces_the_bundled_one_under_all_its_names() -> None:
    rows = model_rows({"anthropic": {"claude-opus-5-5": {"window": 500_000, "prices": {"input": 1.0, "output": 2.0}}}})
    table = ModelTable([*bundled_models(), *rows])
    for name in ("claude-opus-5-5", "opus"):
        assert table.find("anthropic", name).window == 500_000
        assert table.find("anthropic", name).cost(Usage(1_000_000)) == 1.0
    assert table.find("anthropic", "claude-haiku-5-5") == HAIKU
    assert bundled_models().find("anthropic", "opus").window == 1_000_000


def test_a_person_s_row_may_take_an_alias_over() -> None:
    table = ModelTable([*bundled_models(), ModelInfo("claude-opus-9", "anthropic", aliases=("opus",))])
    assert table.find("anthropic", "opus").id == "claude-opus-9"


def test_an_id_goes_before_an_alias() -> None:
    table = ModelTable([ModelInfo("a", "p"), ModelInfo("b", "p", aliases=("a",))])
    assert table.find("p", "a").id == "a"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"windwo": 1}, "windwo"),
        ({"window": "big"}, "window"),
        ({"thinking": "deep"}, "thinking"),
        ({"prices": {"input": "x"}}, "prices"),
    ],
)
def test_a_wrong_row_names_its_key(row: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        model_rows({"anthropic": {"m": row}})


def test_limits_come_from_the_server_where_it_lists_them() -> None:
    info = ModelInfo("claude-sonnet-5-5", "anthropic", window=1, max_output=1, takes_images=True)
    better = with_listed_limits(info, ANTHROPIC_MODEL)
    assert (better.window, better.max_output) == (1_000_000, 128_000)
    assert better == msgspec.structs.replace(info, window=1_000_000, max_output=128_000)


@pytest.mark.parametrize(
    "listed", [{}, {"max_input_tokens": None, "max_tokens": 0}, {"max_input_tokens": "many", "max_tokens": -1}]
)
def test_limits_that_make_no_sense_are_not_taken(listed: dict[str, Any]) -> None:
    assert with_listed_limits(OPUS, listed) is not None
    assert with_listed_limits(OPUS, listed) == OPUS


# Estimates


def tokens(*blocks: Any, model: ModelInfo = HAIKU) -> int:
    return estimate(asking(Message("user", blocks)), model).tokens


def test_an_estimate_is_on_the_safe_side_and_not_exact() -> None:
    text = "def read(path: str) -> bytes:\n    return open(path, 'rb').read()\n" * 50  # 950 tokens in o200k
    counted = estimate(asking(text, system="", tools=()), ModelInfo("m", "p"))
    assert not counted.exact
    assert 950 <= counted.tokens <= 1_200


@pytest.mark.parametrize(
    "block",
    [
        Text("x" * 4_000),
        Thinking("x" * 4_000),
        RedactedThinking("x" * 4_000),
        ToolUse("a", "b", {"c": "x" * 4_000}),
        ToolUse("a", "b", {}, unparsed="x" * 4_000),
        ToolResult("a", "x" * 4_000),
        ToolResult("a", (Text("x" * 4_000),)),
        Opaque("anthropic", {"content": "x" * 4_000}),
        Document(Base64Source("application/pdf", "x" * 16_000)),
    ],
    ids=lambda block: type(block).__name__,
)
def test_every_kind_of_block_counts(block: Any) -> None:
    assert tokens(block) - tokens() >= 1_000


def test_an_image_costs_the_same_wherever_it_occurs_and_whatever_its_bytes() -> None:
    assert tokens(Image(PICTURE)) - tokens() == TOKENS_PER_IMAGE
    assert tokens(ToolResult("a", (Image(PICTURE), Image(PICTURE)))) - tokens() == 2 * TOKENS_PER_IMAGE


def test_a_model_with_smaller_tokens_counts_more_of_them() -> None:
    text = "word " * 1_000
    plain = ModelInfo("m", "p")
    assert estimate_text(text, HAIKU) == pytest.approx(estimate_text(text, plain) * 1.3, rel=0.01)
    assert estimate_text(text) == estimate_text(text, plain)
    assert tokens(Text(text)) > tokens(Text(text), model=plain)


def test_tools_and_system_text_count() -> None:
    with_tools = estimate(asking("Hi"), HAIKU).tokens
    assert (
        with_tools
        > estimate(asking("Hi", tools=()), HAIKU).tokens
        > estimate(asking("Hi", tools=(), system=""), HAIKU).tokens
    )


def test_text_that_utf8_cannot_hold_is_counted_too() -> None:
    assert estimate_text("\ud800" * 100) > 10
    assert tokens(Text("\ud800"), Thinking("\ud800"), ToolResult("a", "\ud800")) >= tokens()


def test_a_model_has_its_provider_from_an_alias_or_from_a_name_of_anthropic() -> None:
    assert split_name("haiku") == ("anthropic", "claude-haiku-5-5")
    assert split_name("claude-sonnet-4-5-20250929") == ("anthropic", "claude-sonnet-4-5")
    assert split_name("sonnet[1m]") == split_name("sonnet") == ("anthropic", "claude-sonnet-5-5")
    assert split_name("claude-opus-4-20250514") == ("anthropic", "claude-opus-4-20250514")
    with pytest.raises(UsageError):
        split_name("gpt")
