"""The output of a command in a terminal reads afterwards as the screen showed it."""

from __future__ import annotations

import time

import pytest

from agentcli.frontends.terminal.programs import MAX_KEPT_BYTES, ProgramOutput


def text_of(written: str) -> str:
    output = ProgramOutput()
    output.add(written.encode())
    return output.text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07\r\n", "red link\n"),
        ("10 %\r50 %\r100 %\x1b[K\r\ndone", "100 %\ndone"),
        ("100 %\r\x1b[K", ""),
        ("pyhto\b\b\b\x1b[Kthon\r\n", "python\n"),
        ("|\b/\b-\b\\\b done", " done"),
        ("\b\bx", "x"),
        ("before\r\n\x1b[?1049h\x1b[2Jscreen\x1b[?1049lafter", "before\nafter"),
        ("before\r\n\x1b[?1049hscreen that never ends", "before\n"),
        ("a\tb\r\n\r\nc", "a\tb\n\nc"),
        ("", ""),
    ],
)
def test_it_is_what_a_terminal_would_show_in_the_end(written: str, shown: str) -> None:
    assert text_of(written) == shown


def test_of_much_output_the_beginning_and_the_end_are_kept() -> None:
    output = ProgramOutput()
    for number in range(100_000):
        output.add(b"line %06d\r\n" % number)
    assert output.text.startswith("line 000000\nline 000001\n")
    assert output.text.endswith("line 099998\nline 099999\n")
    assert "bytes cut]" in output.text
    assert len(output.text) < 4 * MAX_KEPT_BYTES


def test_many_corrections_take_no_time() -> None:
    began = time.process_time()
    assert text_of("x" * 100_000 + "\b" * 100_000 + "y").startswith("yx")
    assert text_of("x\r" * 100_000) == "x"
    assert time.process_time() - began < 20  # what grows with the square takes minutes
