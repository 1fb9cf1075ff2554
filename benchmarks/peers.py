"""agentcli beside other coding assistants: start, turns, streams and what they send, all in one run.

`python benchmarks/peers.py [RUNS]` measures agentcli and a floor (`floor_agent.py`), and codex and pi where they are on
the PATH; it prints one Markdown table. All talk to the same scripted server on loopback: codex by the Responses API,
the others by the Messages API. Commands run without approvals, agentcli's and codex's in their sandboxes. CPU is of a
whole process tree, memory the peak of its largest process. Run it on an idle machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyte
from loopback import ROOT, cpu_of, environment, loopback, median, workspace
from prompt import billed, tokens, without_marks
from terminal import sample

COLUMNS, ROWS = 120, 40
PROMPT = "BENCHMARK: do the steps one after the other, then answer."
QUESTIONS = {  # what a terminal is asked at the start, and what xterm answers
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[c": b"\x1b[?62;22c",
    b"\x1b[?u": b"\x1b[?0u",
    b"\x1b]11;?": b"\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\",
    b"\x1b]10;?": b"\x1b]10;rgb:d0d0/d0d0/d0d0\x1b\\",
}


class Peer(NamedTuple):
    name: str
    command: list[str]
    headless: list[str]
    screen: list[str] | None  # None: it has no interactive screen
    prepare: Callable[[str, str, dict[str, str]], None]  # url, repository, environment (with HOME)

    def version(self) -> str:
        if self.screen is None:
            return platform.python_version()
        answer = subprocess.run([*self.command, "--version"], check=True, capture_output=True, text=True)
        return (answer.stdout + answer.stderr).split()[-1]


def prepare_nothing(url: str, repository: str, env: dict[str, str]) -> None:
    del url, repository, env


def prepare_codex(url: str, repository: str, env: dict[str, str]) -> None:
    folder = Path(env["HOME"], ".codex")
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'model = "gpt-5"\nmodel_provider = "loopback"\ncheck_for_update_on_startup = false\n'
        f'approval_policy = "never"\nsandbox_mode = "workspace-write"\n[analytics]\nenabled = false\n'
        f'[model_providers.loopback]\nname = "loopback"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
        f'[projects."{repository}"]\ntrust_level = "trusted"\n'
    )


def prepare_pi(url: str, repository: str, env: dict[str, str]) -> None:
    del repository
    folder = Path(env["HOME"], ".pi", "agent")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_text(json.dumps({"providers": {"anthropic": {"baseUrl": url}}}))


def installed_peers() -> list[Peer]:
    ours = [sys.executable, "-m", "agentcli"]
    found = [Peer("agentcli", ours, ["-p", "--max-turns", "60"], ["--allow", "bash(echo *)"], prepare_nothing)]
    if shutil.which("codex"):
        found.append(Peer("codex", ["codex"], ["exec", "--skip-git-repo-check"], [], prepare_codex))
    if shutil.which("pi"):
        model = ["--provider", "anthropic", "--model", "claude-sonnet-4-5"]
        found.append(Peer("pi", ["pi"], [*model, "-p"], model, prepare_pi))
    return [*found, Peer("floor", [sys.executable, str(ROOT / "benchmarks/floor_agent.py")], [], None, prepare_nothing)]


def prepared(peer: Peer, url: str, repository: str, home: str) -> dict[str, str]:
    """The environment of a run with an empty home, without updates and telemetry."""
    env = environment(url, home) | {"HOME": home, "CODEX_HOME": f"{home}/.codex", "TERM": "xterm-256color"}
    env |= {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    peer.prepare(url, repository, env)
    return env


def end_daemons(home: str) -> None:
    """Kill what a peer left running in this home: codex starts a server that outlives it."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if home.encode() in command.read_bytes() and command.parent.name != str(os.getpid()):
                os.kill(int(command.parent.name), signal.SIGKILL)


# Without a screen


def headless(peer: Peer, script: str, *, deltas: int = 20_000, delay_ms: float = 0) -> tuple[dict, list[dict]]:
    """One whole run: its figures (`cpu`, `wall`), and the requests it made."""
    with workspace() as (repository, home), loopback(script, deltas=deltas, delay_ms=delay_ms) as (url, requests):
        env = prepared(peer, url, repository, home)
        command = [*peer.command, *peer.headless, PROMPT]
        with loopback("hello") as (first_url, _):  # the first run makes files and caches
            cpu_of(command, cwd=repository, env=prepared(peer, first_url, repository, home))
        prepared(peer, url, repository, home)
        figures = cpu_of(command, cwd=repository, env=env)
        end_daemons(home)
        return figures, requests()


def request_tokens(body: dict) -> int:
    """The tokens of what a model reads of a request, which does not include the marks for its cache."""
    parts = (body.get(name) for name in ("tools", "system", "instructions", "messages", "input"))
    return sum(tokens(json.loads(json.dumps(part), object_hook=without_marks)) for part in parts if part)


def billed_automatically(bodies: list[dict]) -> float:
    """Base-price tokens with automatic caching of prefixes: what was sent before is read at a tenth."""
    total, before = 0.0, ""
    for body in bodies:
        text = json.dumps([body.get(name) for name in ("tools", "instructions", "system", "input", "messages")])
        shared = next((n for n, (old, new) in enumerate(zip(before, text, strict=False)) if old != new), len(before))
        total += 0.1 * tokens(text[:shared]) + 1.25 * tokens(text[shared:])
        before = text
    return total


# With a screen


class Screen:
    """A program in a pseudo-terminal that answers what terminals are asked."""

    def __init__(self, peer: Peer, repository: str, env: dict[str, str]) -> None:
        assert peer.screen is not None
        self.started = time.perf_counter()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            settings = termios.tcgetattr(0)
            settings[3] &= ~termios.ECHO  # so that only the program itself shows a key
            termios.tcsetattr(0, termios.TCSANOW, settings)
            os.chdir(repository)
            command = [*peer.command, *peer.screen]
            os.execvpe(command[0], command, env)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str, *, keys: str = "", every_s: float = 0.02, seconds: float = 300) -> None:
        """Read until a row of the screen has `text`; `keys` are typed until something of them is there."""
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if select.select([self._fd], [], [], every_s)[0]:
                data = os.read(self._fd, 262_144)
                for question, answer in QUESTIONS.items():
                    if question in data:
                        os.write(self._fd, answer)
                self._stream.feed(data)
                # Not `display`, which fails at the second cell of a wide character that was overwritten.
                rows = ("".join(row[column].data for column in range(COLUMNS)) for row in self._screen.buffer.values())
                if any(text in row for row in rows):
                    return
            elif keys:
                self.type(keys)
        raise SystemExit(f"{text!r} did not come:\n" + "\n".join(row.rstrip() for row in self._screen.display))

    def cpu(self) -> float:
        """CPU seconds so far, of the process and of all that it started."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[3]) == self.pid:  # its session is this terminal's
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


def typed_key(peer: Peer) -> tuple[float, float]:
    """Wall and CPU seconds from the start to a typed character on the screen."""
    with workspace() as (repository, home), loopback("hello") as (url, _):
        env = prepared(peer, url, repository, home)
        for _ in range(2):  # the first run makes files and caches
            screen = Screen(peer, repository, env)
            try:
                screen.wait_for("Z", keys="Z")
                took = time.perf_counter() - screen.started, screen.cpu()
            finally:
                screen.close()
                end_daemons(home)
        return took


def streamed(peer: Peer) -> float:
    """CPU seconds of 20,000 deltas on the screen, beyond what a reply of one word takes."""
    took = []
    last = "The end of it."
    text = sample()
    for deltas in ([], [text[at : at + 5] for at in range(0, len(text), 5)]):
        with workspace() as (repository, home):
            file = Path(home, "deltas.json")
            file.write_text(json.dumps([*deltas, "\n\n" + last]))
            with loopback(str(file)) as (url, _):
                screen = Screen(peer, repository, prepared(peer, url, repository, home))
                try:
                    screen.wait_for("Z", keys="Z")
                    before = screen.cpu()
                    screen.type(" go")
                    screen.wait_for("go")
                    time.sleep(0.5)
                    screen.type("\r")
                    screen.wait_for(last)
                    took.append(screen.cpu() - before)
                finally:
                    screen.close()
                    end_daemons(home)
    return took[1] - took[0]


# The table


def column(peer: Peer, runs: int) -> dict[str, str]:
    cells = {"version": peer.version()}
    repeat = range(runs)
    if peer.screen is not None:
        figures = [cpu_of([*peer.command, "--version"]) for _ in repeat]
        cells["`--version`, CPU s"] = f"{median([run['cpu'] for run in figures]):.2f}"
    ones = [headless(peer, "hello") for _ in repeat]
    one = {name: median([run[name] for run, _ in ones]) for name in ("cpu", "wall", "rss")}
    cells["one-shot, CPU s / wall s / MiB"] = f"{one['cpu']:.2f} / {one['wall']:.2f} / {one['rss']:.0f}"
    gaps, each_cpu, totals = [], [], []
    for _ in repeat:
        run, rows = headless(peer, "turns")
        gaps.append(median([(after["arrived"] - before["ended"]) * 1000 for before, after in pairwise(rows)]))
        each_cpu.append((run["cpu"] - one["cpu"]) / (len(rows) - 1) * 1000)
        totals.append(run["wall"])
    cells["gap between a reply and the next request, ms"] = f"{median(gaps):.1f}"
    cells["CPU of a turn with one `echo`, ms"] = f"{median(each_cpu):.1f}"
    cells["50 turns, wall s"] = f"{median(totals):.1f}"
    streams = [headless(peer, "stream")[0]["cpu"] - one["cpu"] for _ in repeat]
    cells["20,000 deltas without a screen, CPU s beyond one-shot"] = f"{median(streams):.2f}"
    paced, _ = headless(peer, "stream", deltas=3_000, delay_ms=10)
    cells["3,000 deltas at 100 a second, CPU s in all"] = f"{paced['cpu']:.2f}"
    if peer.screen is not None:
        walls, cpus = zip(*(typed_key(peer) for _ in repeat), strict=True)
        cells["start to a typed key on the screen, s / CPU s"] = f"{median([*walls]):.2f} / {median([*cpus]):.2f}"
        cells["20,000 deltas on the screen, CPU s"] = f"{median([streamed(peer) for _ in repeat]):.1f}"
    bodies = [json.loads(row["body"]) for row in rows]
    paid = (billed if "messages" in bodies[0] else billed_automatically)(bodies)
    cells["first request, tokens / 50 turns billed"] = f"{request_tokens(bodies[0]):,} / {paid / 1000:.1f}k"
    return cells


def main(runs: int = 3) -> None:
    columns = {peer.name: column(peer, runs) for peer in installed_peers()}
    print(
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, medians of {runs}\n"
    )
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for title in columns["agentcli"]:
        print(f"| {title} | {' | '.join(cells.get(title, '–') for cells in columns.values())} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
