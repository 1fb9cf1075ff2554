"""What the model sees of a result: by level, in pages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.tools.observation import Levels, data_summary, format_value, pages_of
from agentcli.tools.tool import OutputLevel

LONG = "abcdefghij" * 60


@pytest.mark.parametrize(
    ("value", "brief", "standard", "full"),
    [
        ([], "Found 0 items", "Found 0 items", "[]"),
        (["a"], "Found 1 item", "Found 1 item:\na", '["a"]'),
        ([{"n": 1}], "Found 1 item", 'Found 1 item:\n{"n":1}', '[{"n":1}]'),
        ({"status": "ok", "n": 1}, "status: ok", '{"status":"ok","n":1}', '{"status":"ok","n":1}'),
        ({"a": 1, "b": 2}, "2 fields", '{"a":1,"b":2}', '{"a":1,"b":2}'),
        (LONG, f"{LONG[:100]}[500 more characters]", f"{LONG[:500]}[100 more characters]", LONG),
        ("short", "short", "short", "short"),
        (42, "42", "42", "42"),
        (True, "true", "true", "true"),
    ],
)
def test_a_value_is_shown_by_level(value: Any, brief: str, standard: str, full: str) -> None:
    assert (format_value(value, "brief"), format_value(value, "standard"), format_value(value, "full")) == (
        brief,
        standard,
        full,
    )


@pytest.mark.parametrize(
    ("asked", "own", "share", "level"),
    [
        ("full", "brief", 0.9, "full"),
        (None, None, 0.0, "standard"),
        (None, "full", 0.9, "full"),
        (None, None, 0.81, "brief"),
        (None, None, 0.8, "standard"),
    ],
)
def test_the_first_level_that_applies_counts(
    asked: OutputLevel | None, own: OutputLevel | None, share: float, level: str
) -> None:
    assert Levels().level_for("any", asked=asked, own=own, window_share=share) == level


def test_a_tool_s_setting_counts_before_a_full_window() -> None:
    levels = Levels("brief", {"bash": "full"})
    assert levels.level_for("bash", asked=None, own=None, window_share=0.9) == "full"
    assert levels.level_for("other", asked=None, own=None, window_share=0.0) == "brief"


@given(st.text(alphabet=st.sampled_from("aé\n😀 "), max_size=400), st.integers(8, 60))
def test_pages_are_the_text_and_none_is_too_large(text: str, most: int) -> None:
    pages = pages_of(text, most)
    assert "".join(pages) == text
    assert all(len(page.encode()) <= most for page in pages)
    assert all(pages) or pages == [""]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("hello\n" * 299 + "a longer line", "300 lines, the longest has 13 characters"),
        ("x" * 2_000 + "\n", "1 line, the longest has 2,000 characters"),
    ],
)
def test_a_large_text_is_described_by_its_lines(text: str, summary: str) -> None:
    assert data_summary(text) == summary
