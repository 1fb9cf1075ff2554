"""Notifications: one sequence, whatever is in the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.terminal.console import notification

CHOICES = ("auto", "osc9", "osc777", "bell", "off")
PROGRAMS = [{"TERM_PROGRAM": "iTerm.app"}, {"TERM_PROGRAM": "ghostty"}]
ENVIRONMENTS = [{}, *PROGRAMS, {"KITTY_WINDOW_ID": "1"}, {"VTE_VERSION": "7000"}]
WHOLE = re.compile(r"(?:\x1b\](?:9;|777;notify;agentcli;)[^\x00-\x1f\x7f-\x9f;]*\x07|\x07)?")


@given(
    st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\x07\x1b\\;\x9c\x9d\x90\r\n\x18\x1a"))),
    st.sampled_from(CHOICES),
    st.sampled_from(ENVIRONMENTS),
    st.booleans(),
)
def test_the_text_cannot_end_its_sequence_early(
    text: str, how: str, environment: dict[str, str], is_in_tmux: bool
) -> None:
    codes = notification(text, how, {**environment, **({"TMUX": "x"} if is_in_tmux else {})})
    if codes.startswith("\x1bPtmux;"):
        inner = codes.removeprefix("\x1bPtmux;").removesuffix("\x1b\\")
        assert "\x1b" not in inner.replace("\x1b\x1b", "")
        codes = inner.replace("\x1b\x1b", "\x1b")
    assert WHOLE.fullmatch(codes)
    assert len(codes) < 250


@pytest.mark.parametrize(
    ("how", "environment", "codes"),
    [
        ("auto", {}, "\x07"),
        ("auto", {"VTE_VERSION": "7000"}, "\x1b]777;notify;agentcli;Done, really\x07"),
        ("auto", {"KITTY_WINDOW_ID": "1"}, "\x1b]9;Done, really\x07"),
        ("osc9", {"TMUX": "x"}, "\x1bPtmux;\x1b\x1b]9;Done, really\x07\x1b\\"),
        ("bell", {"KITTY_WINDOW_ID": "1"}, "\x07"),
        ("off", {"KITTY_WINDOW_ID": "1"}, ""),
    ],
)
def test_each_terminal_gets_what_it_understands(how: str, environment: dict[str, str], codes: str) -> None:
    assert notification("Done;\nreally", how, environment) == codes
