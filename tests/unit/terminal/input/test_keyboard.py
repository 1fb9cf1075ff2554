"""Keys and pastes arrive; reports of the terminal never end up in the input."""

from __future__ import annotations

import os
import pty
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.keys import Keys

from agentcli.frontends.terminal.input.prompt import TerminalInput
from tests.properties import examples

BACKGROUND = "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\"
SYNCHRONIZED = "\x1b[?2026;2$y"


@dataclass
class Keyboard:
    master: int
    input: TerminalInput
    reports: list[str] = field(default_factory=list)

    def type(self, *pieces: str) -> list[tuple[str, str]]:
        """Each piece is a read of its own; gives the keys."""
        keys: list[tuple[str, str]] = []
        for piece in pieces:
            os.write(self.master, piece.encode())
            keys += self._named(self.input.read_keys())
        return keys

    def pause(self) -> list[tuple[str, str]]:
        """As long as an Esc has to stand alone."""
        return self._named(self.input.flush_keys())

    @staticmethod
    def _named(keys: list) -> list[tuple[str, str]]:
        return [(str(getattr(key.key, "value", key.key)), key.data) for key in keys]


def text_of(keys: list[tuple[str, str]]) -> str:
    return "".join(data for _, data in keys)


@pytest.fixture(scope="module")
def terminal() -> Iterator[tuple[int, object]]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with os.fdopen(slave, encoding="utf-8") as stdin:
        yield master, stdin
    os.close(master)


def new_keyboard(terminal: tuple[int, object]) -> Keyboard:
    reports: list[str] = []
    return Keyboard(terminal[0], TerminalInput(terminal[1], reports.append), reports)  # type: ignore[arg-type]


@pytest.fixture
def keyboard(terminal: tuple[int, object]) -> Keyboard:
    return new_keyboard(terminal)


@examples(150)
@given(st.data(), st.booleans())
def test_reports_are_reported_and_typed_text_is_typed_however_it_is_read(
    terminal: tuple[int, object], data: st.DataObject, expects: bool
) -> None:
    keyboard = new_keyboard(terminal)
    keyboard.input.expects_reports = expects
    reports = {BACKGROUND: BACKGROUND[2:-2], SYNCHRONIZED: "?2026;2$y", "\x1b[I": "I", "\x1b[O": "O"}
    for bell in ("\x1b]10;rgb:ff/ff/ff\x07", "\x1b]7501;?\x07"):
        reports[bell] = bell[2:-1]
    parts = data.draw(st.lists(st.one_of(st.sampled_from(sorted(reports)), st.text("abIO[;?2é", max_size=3))))
    sent = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    keys = keyboard.type(*(piece for piece in pieces if piece)) + keyboard.pause()
    assert text_of(keys) == "".join(part for part in parts if part not in reports)
    assert keyboard.reports == [reports[part] for part in parts if part in reports]


def test_a_report_that_takes_longer_than_an_esc_is_waited_for_while_one_is_due(keyboard: Keyboard) -> None:
    keyboard.input.expects_reports = True
    keys = []
    for piece in (BACKGROUND[:4], BACKGROUND[4:20], BACKGROUND[20:], SYNCHRONIZED[:6], SYNCHRONIZED[6:]):
        keys += keyboard.type(piece) + keyboard.pause()
    assert keys == []
    assert keyboard.reports == [BACKGROUND[2:-2], "?2026;2$y"]


def test_what_looked_like_a_report_and_is_none_is_typed(keyboard: Keyboard) -> None:
    keys = keyboard.type("\x1b]1") + keyboard.pause()
    assert text_of(keys).endswith("]1")
    keyboard.input.expects_reports = True
    keys = keyboard.type("\x1b]11;" + "x" * 300)
    assert text_of(keys).endswith("x" * 300)


@pytest.mark.parametrize("expects", [True, False])
def test_esc_alone_is_a_key_after_the_pause(keyboard: Keyboard, expects: bool) -> None:
    keyboard.input.expects_reports = expects
    assert keyboard.type("\x1b") == []
    assert [key for key, _ in keyboard.pause()] == [Keys.Escape.value]
    assert [key for key, _ in keyboard.type("a")] == ["a"]


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        *((f"\x1b[27;{modifier};13~", Keys.ControlJ) for modifier in range(2, 9)),
        *((f"\x1b[13;{modifier}u", Keys.ControlJ) for modifier in range(2, 9)),
        ("\x1b[27u", Keys.Escape),
        ("\r", Keys.ControlM),
        ("\x1b[A", Keys.Up),
        ("\x1b[20~", Keys.F9),
        ("\x1bOP", Keys.F1),
        ("\x1b[Z", Keys.BackTab),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_keys_arrive_whole_also_when_they_are_read_in_two(keyboard: Keyboard, sent: str, key: Keys, at: int) -> None:
    keys = keyboard.type(*(piece for piece in (sent[:at], sent[at:]) if piece)) + keyboard.pause()
    assert [name for name, _ in keys] == [key.value]


@examples(150)
@given(st.data())
def test_a_paste_stays_as_it_is_whatever_is_in_it(terminal: tuple[int, object], data: st.DataObject) -> None:
    keyboard = new_keyboard(terminal)
    keyboard.input.expects_reports = data.draw(st.booleans())
    inner = data.draw(
        st.lists(st.sampled_from([BACKGROUND, SYNCHRONIZED, "\x1b[I", "\x1b", "\x1b[200~", "text", "\n"])).map("".join)
    )
    sent = f"\x1b[200~{inner}\x1b[201~"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    keys = keyboard.type(*(piece for piece in pieces if piece))
    assert keys == [(Keys.BracketedPaste.value, inner)]
    assert keyboard.reports == []
    assert keyboard.type("\x1b[O") == []
    assert keyboard.reports == ["O"], "what comes behind it is a report again"


def test_a_paste_that_comes_slowly_ends_where_it_ends(keyboard: Keyboard) -> None:
    keys = []
    for piece in ("\x1b[200~one", " two\x1b[20", "1~", "x\x1b[I"):
        keys += keyboard.type(piece) + keyboard.pause()
    assert keys == [(Keys.BracketedPaste.value, "one two"), ("x", "x")]
    assert keyboard.reports == ["I"]
