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
from itertools import groupby, pairwise
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
CHANGE = [
    {
        "text": "I rename the function with sed.",
        "tool_calls": [{"name": "bash", "input": {"command": "sed -i s/with_tax/add_tax/ price.py"}}],
    },
    {"text": "`price.py` says `add_tax` now."},
]
WORK = [
    {
        "text": "I run the whole suite.",
        "tool_calls": [{"name": "bash", "input": {"command": "for n in 1 2 3 4; do echo test $n ok; sleep 1; done"}}],
    },
    {"text": "All four pass."},
]
MAX_FRAME_S, LAST_FRAME_S = 1.5, 5.0
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
    is_film: bool = False  # the picture moves: a frame for each screen that stood for a while


@dataclass
class Person:
    """Somebody at a terminal."""

    child: pexpect.spawn
    screen: pyte.Screen
    stream: pyte.Stream = field(init=False)
    frames: list[tuple[float, Text]] = field(default_factory=list)  # when each screen was first seen, in seconds

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
                text = as_text(self.screen)
                if not self.frames or text != self.frames[-1][1]:
                    self.frames.append((time.monotonic(), text))
                continue
            except pexpect.EOF:
                return


def fix_a_test(person: Person) -> None:
    for word in ("the price test ", "fails, ", "please ", "fix it"):
        person.type(word)
    person.type("\r")
    person.see("❯ y   Yes")
    person.wait(1)
    person.type("y")
    person.see("line 7.")


def approve(person: Person) -> None:
    person.type("the price test fails, please fix it\r")
    person.see("❯ y   Yes")
    person.wait(1)
    person.type("\x1b[C")


def dry_run(person: Person) -> None:
    person.type("rename with_tax to add_tax\r")
    person.see("❯")
    person.wait(1.5)


def undo(person: Person) -> None:
    dry_run(person)
    person.type("y")
    person.see("says add_tax now.")
    person.type("/undo\r")
    person.wait(1.5)


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
    "session": Scene(FIX, fix_a_test, lines=44, is_film=True),
    "approval": Scene(FIX, approve, lines=26),
    "dry-run": Scene(CHANGE, dry_run, lines=32),
    "undo": Scene(CHANGE, undo, lines=40),
    "steering": Scene(WORK, steer, lines=20, flags=("--permission-mode", "bypassPermissions")),
    "answer-light": Scene([{"text": ANSWER}], read, lines=32, background="ffff/ffff/ffff"),
    "answer-40-columns": Scene([{"text": ANSWER}], read, columns=40, lines=40),
    "completion": Scene(FIX, complete, lines=12),
}


def play(scene: Scene, folder: Path) -> Person:
    """Return the person at the end of a scene, with the screens that were seen."""
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
    return person


def as_text(screen: pyte.Screen) -> Text:
    rows = [_row(screen.buffer[row], screen.columns) for row in range(screen.lines)]
    while rows and not rows[-1].plain:
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


def film(scene: Scene, frames: list[tuple[float, Text]]) -> str:
    """One SVG that shows the frames in turn, each for as long as it stood, the last one for five seconds."""
    rows = max(len(text.plain.splitlines()) for _, text in frames)
    padded = [Text("\n").join([text, *[Text()] * (rows - len(text.plain.splitlines()))]) for _, text in frames]
    times = [min(max(after - before, 0.15), MAX_FRAME_S) for (before, _), (after, _) in pairwise(frames)] + [
        LAST_FRAME_S
    ]
    whole_s = sum(times)
    pictures, styles, start_s = [], [], 0.0
    for number, (text, time_s) in enumerate(zip(padded, times, strict=True)):
        shown, gone = (100 * start_s / whole_s, 100 * (start_s + time_s) / whole_s)
        start_s += time_s
        styles.append(
            f"@keyframes f{number} {{ 0% {{ visibility: hidden }} {shown:.2f}% {{ visibility: visible }} "
            f"{gone:.2f}% {{ visibility: hidden }} }}\n"
            f".f{number} {{ visibility: hidden; animation: f{number} {whole_s:.1f}s step-end infinite }}"
        )
        still = re.sub(r"<defs>.*?</defs>| clip-path=\"[^\"]*\"", "", picture(scene, text), flags=re.DOTALL)
        pictures.append(f'<g class="f{number}">{still}</g>')
    size = re.search(r'viewBox="[^"]*"', pictures[-1])
    assert size is not None
    return f'<svg {size[0]} xmlns="http://www.w3.org/2000/svg">\n<style>\n' + "\n".join(
        [*styles, "</style>", *pictures, "</svg>"]
    )


def main() -> None:
    for name in sys.argv[1:] or SCENES:
        scene = SCENES[name]
        with tempfile.TemporaryDirectory() as folder:
            person = play(scene, Path(folder))
        svg = film(scene, person.frames) if scene.is_film else picture(scene, as_text(person.screen))
        (Path(__file__).parent / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    main()
