"""Kills agentcli while it tries a command, asks about it and keeps what it did: python benchmarks/killed_tries.py [RUNS] [SEED].

Each run kills one (SIGKILL), often with some or all of its children, at a random moment of one of the three, and starts the
session again. Then the tree has to be as before, or as it was to be kept with every file told; until then each file has to
be one or the other. Nothing may be left mounted or running. Exits with 1 where something is wrong, and says what.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNS, PATIENCE_S = 200, 30.0
TEXTS = 30  # files of which hunks are kept
LINES = [str(number) for number in range(60)]
EDITS = {"5": "five", "30": "thirty", "55": "fifty-five"}
NEW = 20  # files of a new folder, which is moved
EDIT = " ".join(f"-e 's/^{old}$/{new}/'" for old, new in EDITS.items())
COMMAND = f"""
for i in {{1..{TEXTS}}}; do sed -i {EDIT} t$i; done
mkdir new; for i in {{1..{NEW}}}; do echo $i >new/$i; done
rm gone; chmod 700 tool; ln -sfn new link; echo done
"""

Tree = dict[str, tuple[int, bytes | str]]


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(1, TEXTS + 1):
        (folder / f"t{number}").write_text("\n".join(LINES))
    for name in ("gone", "tool"):
        (folder / name).write_text(f"{name}\n")
    (folder / "link").symlink_to("tool")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def tree_of(folder: Path) -> Tree:
    found: Tree = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        held = str(path.readlink()) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else ""
        found[str(path.relative_to(folder))] = (mode, held)
    return found


def kept_tree(twin: Path, hunks: dict[str, list[int]] | None) -> Tree:
    """What the command leaves; of the texts only the hunks that are kept of them."""
    make(twin)
    subprocess.run(["bash", "-c", COMMAND], cwd=twin, check=True, stdout=subprocess.DEVNULL)
    for name, kept in (hunks or {}).items():
        wanted = {old for number, old in enumerate(EDITS) if number in kept}
        (twin / name).write_text("\n".join(EDITS[line] if line in wanted else line for line in LINES))
    return tree_of(twin)


def is_meanwhile(path: str, at: tuple[int, bytes | str]) -> bool:
    """True for a file before it takes its place, and for what is mounted on while a command runs."""
    return bool(re.search(r"\.try-\w+$", path)) or bool(stat.S_ISDIR(at[0]) and at[0] & stat.S_ISVTX) or at[1] == b".\n"


class Run:
    """A project, a home, and a session in it that is killed."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder, self.home = base, base / "project", base / "home"
        make(self.folder)
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(base),
            "AGENTCLI_HOME": str(self.home),
            "OLLAMA_HOST": "127.0.0.1:9",
            "LANG": "C.UTF-8",
        }
        self._problems: list[str] = []
        self._hunks: dict[str, list[int]] | None = None

    def start(self, replies: list[dict[str, Any]], *arguments: str) -> subprocess.Popen[bytes]:
        script = self.base / f"script-{len(replies)}.jsonl"
        script.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        command = [sys.executable, "-m", "agentcli", "-m", f"scripted/{script}", "--output-format", "stream-json"]
        return subprocess.Popen(
            [*command, *arguments], cwd=self.folder, env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def killed_while(self, stage: str) -> tuple[str, list[str]]:
        """Gives what became of the changes, and what is wrong."""
        before = tree_of(self.folder)
        call = {"name": "bash", "input": {"command": COMMAND}}
        with self.start([{"tool_calls": [call]}, {"text": "the end"}], "--input-format", "stream-json") as process:
            self._reach(stage, process)
            kill(process)
        wanted = kept_tree(self.base / "twin", self._hunks)
        for path, at in tree_of(self.folder).items():
            if at not in (before.get(path), wanted.get(path)) and not is_meanwhile(path, at):
                self._problems.append(f"{path} is neither as before nor as it is to be kept")
        self._wait_for_processes()
        with self.start([{"text": "{{last_result}}"}], "-p", "go on", "--continue") as again:
            out, err = again.communicate(timeout=PATIENCE_S)
        told = f"{json.loads(out.splitlines()[-1])['result']}\n{err.decode()}"
        self._wait_for_processes()
        now = tree_of(self.folder)
        became = "as before" if now == before else "kept" if now == wanted else "in part"
        self._check_told(became, told)
        if became == "in part":
            odd = sorted(path for path in {*now, *wanted} if now.get(path) != wanted.get(path))
            self._problems.append(f"not as it was to be kept: {', '.join(odd)}")
        if left := [path.name for path in self.home.glob("state/tries/*/plan")]:
            self._problems.append(f"left: {left}")
        return f"{became}: {told.split(':', maxsplit=1)[0][:60].strip()}", self._problems

    def _reach(self, stage: str, process: subprocess.Popen[bytes]) -> None:
        """Wait for a random moment of a stage."""
        assert process.stdin is not None
        assert process.stdout is not None
        say(process, {"type": "user", "message": {"role": "user", "content": "go"}})
        if stage == "try":
            while not list(self.home.glob("state/tries/try-*/1")):
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.4))
            return
        asked = next(line for line in map(json.loads, process.stdout) if line.get("subtype") == "approval_requested")
        if stage == "keep":
            say(process, {"type": "control", "subtype": "approve", "id": asked["id"], **self._answer(asked)})
            if random.random() < 0.6:
                while not list(self.home.glob("state/tries/*/plan")):
                    time.sleep(0.0002)
        time.sleep(random.choice((0, 0.01, 0.03, 0.1)) * random.random())

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All changes, or some hunks of each text."""
        if random.random() < 0.5:
            return {}
        self._hunks, chosen, first = {}, [], 0
        for change in asked["changes"]:
            count = change["hunks"]
            kept = sorted(random.sample(range(count), random.randint(1, count)))
            if count > 1:
                self._hunks[change["name"]] = kept
            chosen += [first + number for number in kept]
            first += count
        return {"hunks": chosen}

    def _check_told(self, became: str, told: str) -> None:
        if became == "as before" and "kept now" in told:
            self._problems.append(f"told to be kept, which it is not: {told!r}")
        is_result = self._hunks is None and told.strip() == "done"  # as of a command that ran directly
        if (
            became == "kept"
            and not is_result
            and not all(re.search(rf"\b{name}\b", told) for name in ("t1", f"t{TEXTS}", "new", "gone", "tool", "link"))
        ):
            self._problems.append(f"kept, and not told: {told!r}")

    def _wait_for_processes(self) -> None:
        deadline = time.monotonic() + PATIENCE_S / 3
        while left := list(self._processes()):
            if time.monotonic() > deadline:
                self._problems.append(f"still runs or is mounted: {left}")
                return
            time.sleep(0.05)

    def _processes(self) -> Iterator[str]:
        """Those that work in this place, or see something mounted there."""
        name = os.fsencode(self.base)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                said = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
                where = os.fsencode((process / "cwd").readlink())
                if name in b"".join((*said, where, (process / "mountinfo").read_bytes())):
                    yield f"{process.name} {said[0].decode(errors='replace')[:200]}"
            except OSError:
                continue


def say(process: subprocess.Popen[bytes], line: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(line).encode() + b"\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    """The program alone, with some of what it started, or with all, in any order."""
    below = list(descendants(process.pid))
    doomed = [process.pid, *random.choice(([], below, random.sample(below, len(below) // 2)))]
    random.shuffle(doomed)
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1_000_000)
    random.seed(seed)
    print(f"{runs} runs, seed {seed}")
    counts: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for number in range(runs):
        stage = ("try", "question", "keep")[number % 3]
        with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
            became, problems = Run(Path(folder)).killed_while(stage)
        counts[stage, became] += 1
        wrong += bool(problems)
        for problem in problems:
            print(f"run {number}, {stage}: {problem}", flush=True)
    for (stage, became), count in sorted(counts.items()):
        print(f"{stage:10} {count:4}  {became}")
    print(f"{wrong} of {runs} went wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
