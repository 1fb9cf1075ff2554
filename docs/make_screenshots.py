"""Makes the pictures in docs/ from a real session in a pseudo-terminal: python docs/make_screenshots.py."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

from agentcli.cli.demo import make_sample

COLUMNS, LINES = 92, 44
SCRIPT = """\
{"text": "I read the file and its test.", "tool_calls": [{"name": "file_read", "input": {"path": "price.py"}}, {"name": "grep_search", "input": {"pattern": "with_tax"}}]}
{"text": "`with_tax` subtracts the tax (price.py:7), the test wants it added. I change that line.", "tool_calls": [{"name": "file_edit", "input": {"path": "price.py", "old_string": "    return net - net * TAX", "new_string": "    return net + net * TAX"}}]}
{"text": "Now the tests.", "tool_calls": [{"name": "bash", "input": {"command": "python3 -m unittest -q"}}]}
{"text": "Done: both tests pass. The only change is price.py:7."}
"""


def session_screen(folder: Path) -> pyte.Screen:
    """The screen at the end of a session that asks, edits, runs the tests and answers."""
    repository = folder / "shop"
    make_sample(repository)
    (repository / "script.jsonl").write_text(SCRIPT)
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.Stream(screen)
    env = {**os.environ, "AGENTCLI_HOME": str(folder / "home"), "HOME": str(folder), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "agentcli", "--model", "scripted/script.jsonl"]
    child = pexpect.spawn(
        command[0], command[1:], cwd=repository, env=env, dimensions=(LINES, COLUMNS), encoding="utf-8", timeout=10
    )
    child.logfile_read = _Feed(stream)
    screen.write_process_input = child.send  # answers where the cursor is, as a terminal does
    child.expect("›")
    time.sleep(0.5)
    child.send("the price test fails, please fix it\r")
    for _ in range(2):
        child.expect("to do instead:")
        time.sleep(0.3)
        child.send("y\r")
    child.expect("tokens in")
    time.sleep(0.5)
    child.expect([pexpect.TIMEOUT], timeout=0.5)
    child.sendeof()
    child.close(force=True)
    return screen


class _Feed:
    def __init__(self, stream: pyte.Stream) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.feed(text)

    def flush(self) -> None:
        pass


def as_text(screen: pyte.Screen) -> Text:
    rows = [_row(screen.buffer[row]) for row in range(LINES)]
    while not rows[-1].plain:
        rows.pop()
    return Text("\n").join(rows)


def _row(cells: dict) -> Text:
    row = Text()
    for style, group in groupby((cells[column] for column in range(COLUMNS)), key=_style):
        row.append("".join(cell.data for cell in group), style)
    row.rstrip()
    return row


def _style(cell: pyte.screens.Char) -> str:
    colour = "white" if cell.fg == "default" else cell.fg.replace("brown", "yellow")
    return f"{colour} {'bold' if cell.bold else ''}".strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = as_text(session_screen(Path(folder)))
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(text)
    picture = console.export_svg(title="agentcli")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # a picture that loads nothing
    picture = picture.replace("<text ", '<text xml:space="preserve" ')
    (Path(__file__).parent / "session.svg").write_text(picture)


if __name__ == "__main__":
    main()
