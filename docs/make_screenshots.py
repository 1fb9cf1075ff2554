"""Makes the pictures in docs/ from real sessions in a pseudo-terminal: python docs/make_screenshots.py."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

from agentcli.cli.subcommands.demo import make_sample

EDIT = {"path": "price.py", "old_string": "    return net - net * TAX", "new_string": "    return net + net * TAX"}
FIX = [
    {
        "text": "I read the file and its test.",
        "tool_calls": [
            {"name": "file_read", "input": {"path": "price.py"}},
            {"name": "grep_search", "input": {"pattern": "with_tax"}},
        ],
    },
    {
        "text": "`with_tax` subtracts the tax (price.py:7), the test wants it added. I change that line.",
        "tool_calls": [{"name": "file_edit", "input": EDIT}],
    },
    {"text": "Now the tests.", "tool_calls": [{"name": "bash", "input": {"command": "python3 -m unittest -q"}}]},
    {"text": "Done: both tests pass. The only change is in `price.py`, line 7."},
]
ANSWER = """\
## Prices

`price.py` holds **two functions**; both take *net* amounts in cents:

- `with_tax(net)` adds the tax
- `rounded(amount)` rounds half up, see [PEP 327](https://peps.python.org/pep-0327/)

```python
def with_tax(net: int) -> int:
    return net + net * TAX  # TAX is a share
```

| net | gross |
|----:|------:|
| 100 |   119 |
| 漢字 | emoji 🎉 |
"""
WORK = [
    {
        "text": "I run the whole suite.",
        "tool_calls": [{"name": "bash", "input": {"command": "for n in 1 2 3 4; do echo test $n ok; sleep 1; done"}}],
    },
    {"text": "All four pass."},
]
LIGHT = TerminalTheme(
    (255, 255, 255), (40, 40, 40), [(0, 0, 0)] + [(90, 90, 90)] * 7, [(60, 60, 60)] * 8
)  # the 16 colours are not used where the background is known


@dataclass
class Scene:
    """What is typed and waited for; the picture is the screen at its end."""

    replies: list[dict]
    steps: Callable[[Person], None]
    columns: int = 92
    lines: int = 40
    background: str = "1e1e/1e1e/1e1e"
    flags: tuple[str, ...] = ()


@dataclass
class Person:
    """Somebody at a terminal."""

    child: pexpect.spawn
    screen: pyte.Screen
    stream: pyte.Stream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = pyte.Stream(self.screen)

    def type(self, keys: str) -> None:
        self.child.send(keys)
        self.wait(0.3)

    def see(self, text: str) -> None:
        deadline = time.monotonic() + 10
        while text not in "\n".join(self.screen.display):
            if time.monotonic() > deadline:
                raise SystemExit(f"{text!r} did not come:\n" + "\n".join(self.screen.display))
            self.wait(0.05)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self.stream.feed(self.child.read_nonblocking(65_536, timeout=0.05))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return


def fix_a_test(person: Person) -> None:
    person.type("the price test fails, please fix it\r")
    for _ in range(2):
        person.see("❯ n   No")
        person.wait(1)
        person.type("y")
    person.see("line 7.")


def approve(person: Person) -> None:
    person.type("the price test fails, please fix it\r")
    person.see("❯ n   No")
    person.wait(1)
    person.type("\x1b[C")


def steer(person: Person) -> None:
    person.type("run the tests\r")
    person.see("test 1 ok")
    person.type("and then the linter\t")
    person.type("only the price tests, please")


def read(person: Person) -> None:
    person.type("explain the prices\r")
    person.see("gross")
    person.see("emoji 🎉")


def complete(person: Person) -> None:
    person.type("compare @pri")
    person.see("test_price.py")


SCENES = {
    "session": Scene(FIX, fix_a_test),
    "approval": Scene(FIX, approve, lines=26),
    "steering": Scene(WORK, steer, lines=20, flags=("--permission-mode", "bypassPermissions")),
    "answer-light": Scene([{"text": ANSWER}], read, lines=32, background="ffff/ffff/ffff"),
    "answer-40-columns": Scene([{"text": ANSWER}], read, columns=40, lines=40),
    "completion": Scene(FIX, complete, lines=12),
}


def played(scene: Scene, folder: Path) -> pyte.Screen:
    """The screen at the end of a scene."""
    repository = folder / "shop"
    make_sample(repository)
    (repository / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in scene.replies))
    screen = pyte.Screen(scene.columns, scene.lines)
    env = {
        **os.environ,
        "AGENTCLI_HOME": str(folder / "home"),
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    child = pexpect.spawn(
        sys.executable,
        ["-m", "agentcli", "--model", "scripted/script.jsonl", *scene.flags],
        cwd=repository,
        env=env,
        dimensions=(scene.lines, scene.columns),
        encoding="utf-8",
        timeout=10,
    )
    person = Person(child, screen)
    person.see("script.jsonl")
    person.type(f"\x1b]11;rgb:{scene.background}\x1b\\")  # what a terminal answers when asked for its background
    scene.steps(person)
    person.wait(0.5)
    child.close(force=True)
    return screen


def as_text(screen: pyte.Screen) -> Text:
    rows = [_row(screen.buffer[row], screen.columns) for row in range(screen.lines)]
    while not rows[-1].plain:
        rows.pop()
    return Text("\n").join(rows)


def _row(cells: dict, columns: int) -> Text:
    row = Text()
    for style, group in groupby((cells[column] for column in range(columns)), key=_style):
        row.append("".join(cell.data for cell in group), style)
    row.rstrip()
    return row


def _style(cell: pyte.screens.Char) -> str:
    return " ".join(_words(cell)) or "none"


def _words(cell: pyte.screens.Char) -> Iterator[str]:
    if cell.fg != "default":
        yield f"#{cell.fg}" if re.fullmatch("[0-9a-f]{6}", cell.fg) else cell.fg.replace("brown", "yellow")
    if cell.bg != "default":
        yield f"on #{cell.bg}" if re.fullmatch("[0-9a-f]{6}", cell.bg) else f"on {cell.bg.replace('brown', 'yellow')}"
    for name, attribute in (
        ("bold", "bold"),
        ("italics", "italic"),
        ("underscore", "underline"),
        ("reverse", "reverse"),
    ):
        if getattr(cell, name):
            yield attribute


def picture(scene: Scene, text: Text) -> str:
    console = Console(record=True, width=scene.columns, file=io.StringIO(), color_system="truecolor")
    console.print(text)
    svg = console.export_svg(title="agentcli", theme=LIGHT if scene.background.startswith("f") else DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # a picture that loads nothing
    return svg.replace("<text ", '<text xml:space="preserve" ')


def main() -> None:
    for name in sys.argv[1:] or SCENES:
        with tempfile.TemporaryDirectory() as folder:
            text = as_text(played(SCENES[name], Path(folder)))
        (Path(__file__).parent / f"{name}.svg").write_text(picture(SCENES[name], text))


if __name__ == "__main__":
    main()
