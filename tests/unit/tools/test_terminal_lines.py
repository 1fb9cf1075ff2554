"""A command's output as a terminal shows it in the end; pyte is the terminal."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.tools.observation import as_shown
from tests.properties import examples
from tests.unit.tools.bench import Bench

_PARTS = st.lists(
    st.sampled_from(
        ["abc", "é", " ", "\n", "\r\n", "\r", "\b", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[2D", "\x1b[3C", "\x1b[4G"]
    )
    | st.sampled_from(["\x1b[1;31m", "\x1b[0m", "\x1b]0;title\x07", "\x07", "\x1b(B", "\x1b[?25l"]),
    max_size=20,
).map("".join)


@examples(100)
@given(text=_PARTS)
@example(text="10%\r50%\r\x1b[K100%\ndone")
@example(text="abc\b\b\x1b[1Kd")
def test_it_is_what_a_terminal_shows(text: str) -> None:
    screen = pyte.Screen(120, 25)
    pyte.Stream(screen).feed(text.replace("\r\n", "\n").replace("\n", "\r\n"))
    shown = [line.rstrip() for line in as_shown(text).split("\n")]
    assert shown == [line.rstrip() for line in screen.display[: len(shown)]]


@pytest.mark.parametrize("text", ["\x1b[9999Cx" * 5_000, f"ok\n\x1b[{'1' * 5_000}C", "\x1b[9999G\bx" * 5_000])
def test_moves_far_to_the_right_take_a_moment(text: str) -> None:
    assert len(as_shown(text)) < 30_000


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (r"for i in 1 2 3; do printf '\rprogress %s0%%' $i; done; printf '\rdone\033[K\n'", "done"),
        (r"printf '\033[1;31mred\033[0m \033]8;;http://x\033\\link\033]8;;\033\\\n'", "red link"),
        (r"printf 'passwort\b\brd: \n'", "password: "),
        (r"for i in $(seq 20000); do printf '\rprogress %05d' $i; done; echo; echo end", "progress 20000\nend"),
        (r"printf 'a\r\nb\r\n'", "a\nb"),
        (r"printf 'a.py\0b.py\0'", "a.py\0b.py\0"),
    ],
)
def test_the_model_gets_the_last_state_of_each_line(bench: Bench, command: str, shown: str) -> None:
    output = bench.call("bash", command=command)
    assert output.content == shown.rstrip("\n")
    assert bench.call("bash", command=command, background=False).structured["output"].rstrip("\n") == shown
