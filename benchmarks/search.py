"""file_list and grep_search against `rg` in a tree of 50,000 files: wall time.

The bound is on `rg` as it is, which answers in whatever order its threads come upon things. The tools answer in a fixed
order, which `rg` does only with `--sort path`, in one thread: that is timed too.
A file list with a pattern honours ignore rules, which `rg --files --glob` does not: its floor is the list of all files.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from loopback import ServedTools

from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.sandbox import find_rg
from agentcli.tools.tool import ToolContext, ToolRegistry
from agentcli.tools.workspace import Workspace

FILES = 50_000
BOUND = 1.15
RG = ("--no-config", "--hidden", "--glob=!.git")


class Case(NamedTuple):
    name: str
    tool: str
    input: dict[str, Any]
    rg: Sequence[str]


CASES = (
    Case("list, first 100", "file_list", {}, ["--files"]),
    Case("list, all", "file_list", {"limit": 0}, ["--files"]),
    Case("list, **/*.py", "file_list", {"pattern": "**/*.py", "limit": 0}, ["--files"]),
    Case("list, */**/*.py", "file_list", {"pattern": "*/**/*.py", "limit": 0}, ["--files"]),
    Case("rare pattern", "grep_search", {"pattern": "needle_"}, ["-n", "needle_"]),
    Case("pattern in one type", "grep_search", {"pattern": "value", "type": "py"}, ["-n", "value", "-tpy"]),
    Case("some 2,000, all", "grep_search", {"pattern": "return value", "limit": 0}, ["-n", "return value"]),
    Case("common, first 100", "grep_search", {"pattern": "import"}, ["-n", "import"]),
    Case("common, all", "grep_search", {"pattern": "import", "limit": 0}, ["-n", "import"]),
    Case("common, with context", "grep_search", {"pattern": "import", "context": 2}, ["-nC2", "import"]),
    Case("common, files", "grep_search", {"pattern": "import", "output_mode": "files"}, ["-l", "import"]),
    Case("common, counts", "grep_search", {"pattern": "import", "output_mode": "count"}, ["-c", "import"]),
    Case("over lines", "grep_search", {"pattern": "import\\s+def", "multiline": True}, ["-nU", "import\\s+def"]),
)


def make_tree(top: Path) -> None:
    """Folders up to seven deep; sizes as sources have them, the median at 55 lines; ignored files among them."""
    dice = random.Random(7)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 10))) for _ in range(4_000)]
    words[:6] = ["import", "return", "self", "def", "value", "error"]
    lines = [
        " " * 4 * dice.randint(0, 3)
        + " ".join(dice.choice(words[:6] if dice.random() < 0.05 else words) for _ in range(dice.randint(1, 12)))
        for _ in range(60_000)
    ]
    folders = [top]
    while len(folders) < FILES // 20:
        folder = dice.choice(folders)
        if len(folder.parts) - len(top.parts) < 7:
            folders.append(folder / f"{dice.choice(words)}{len(folders)}")
            folders[-1].mkdir()
    for n in range(FILES):
        count = min(int(dice.lognormvariate(4, 1)), 2_000)
        start = dice.randrange(len(lines) - count)
        needle = [f"a rare needle_{n}"] if n % 5_000 == 17 else []
        name = f"{dice.choice(words)}{n}.{dice.choice(['py', 'py', 'ts', 'md', 'json', 'rs', 'txt', 'log', 'html'])}"
        (dice.choice(folders) / name).write_text("\n".join([*lines[start : start + count], *needle, ""]))
    (top / ".gitignore").write_text("*.log\nbuild/\n")
    subprocess.run(["git", "init", "-q"], cwd=top, check=True)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run_rg(arguments: Sequence[str], top: Path) -> None:
    argv = [find_rg(), *RG, *arguments]
    subprocess.run(argv, cwd=top, stdin=subprocess.DEVNULL, capture_output=True, check=False)


class InProcess:
    """The tools as the loop calls them."""

    def __init__(self, top: Path, scratch: Path) -> None:
        sandbox = LocalSandbox([top], environment={"PATH": "/usr/bin:/bin"}, job_folder=scratch)
        self._context = ToolContext(Workspace(cwd=top, sandbox=sandbox), "call")
        self._tools = ToolRegistry(builtin_tools())
        self._loop = asyncio.new_event_loop()

    def run(self, case: Case) -> None:
        tool = self._tools.get(case.tool)
        self._loop.run_until_complete(tool.run(tool.parse(case.input), self._context))


def main(runs: int = 9) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        top, scratch = Path(folder, "tree"), Path(folder, "scratch")
        top.mkdir()
        scratch.mkdir()
        make_tree(top)
        here, served = InProcess(top, scratch), ServedTools(top, scratch)
        ratios = f"{'to rg':>7}{'sorted':>8}"
        print(f"{'':22}{'rg':>9}{'rg sorted':>11}{'in process':>12}{ratios}{'tools run':>12}{ratios}")
        for case in CASES:
            times: list[tuple[float, float, float, float]] = []
            for n in range(runs + 1):
                plain = timed(partial(run_rg, case.rg, top))
                in_order = timed(partial(run_rg, ["--sort=path", *case.rg], top))
                ours = timed(partial(here.run, case))
                line = timed(partial(served.run, case.tool, case.input))
                times += [(plain, in_order, ours, line)] if n else []  # the first warms up
            plain, in_order, ours, line = (median(column) * 1_000 for column in zip(*times, strict=True))
            ratio = median(ours / plain for plain, _, ours, _ in times)
            to_sorted = median(ours / in_order for _, in_order, ours, _ in times)
            missed += ratio > BOUND
            print(
                f"{case.name:22}{plain:9.1f}{in_order:11.1f}{ours:12.1f}{ratio:7.2f}{to_sorted:8.2f}"
                f"{line:12.1f}{line / plain:7.2f}{line / in_order:8.2f}"
            )
        served.end()
    print(
        f"medians of {runs}, ms, and their ratios; bound {BOUND} in process: {'missed in ' + str(missed) if missed else 'held in all'}"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
