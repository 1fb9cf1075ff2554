"""Ends one-shot runs in unpleasant ways and counts those without a result line: python benchmarks/faults.py [RUNS] [SEED].

Each run answers from a script, with JSON output. A third meets signals, one or two at random times in its first half
second; the others a home, a database, a session or a disk that is of no use. What cannot be made here (a read-only or a
full disk needs root) is left out and said. Python itself takes some milliseconds before the first line of the program: a
signal in these is counted apart, since no program could answer it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

RUNS, PATIENCE_S = 200, 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPLIES = (
    {"text": "Let me look.", "tool_calls": [{"name": "bash", "input": {"command": "sleep 0.1"}}], "delay_ms": 10, "chunk": 3},
    {"text": "one two three four", "chunk": 3, "delay_ms": 20},
)  # fmt: skip


class Ended(NamedTuple):
    code: int
    out: bytes
    err: bytes
    was_heard: bool = True  # the program had begun when the first signal came
    was_read: bool = True  # else no line could come

    @property
    def has_result(self) -> bool:
        """Exactly one, and it is the last line; a usage error needs none."""
        if not self.was_read:
            return True
        try:
            types = [json.loads(line)["type"] for line in self.out.decode().splitlines()]
        except (ValueError, KeyError):
            return False
        return self.code == 2 or (types.count("result") == 1 and types[-1] == "result")

    @property
    def has_traceback(self) -> bool:
        return any(word in self.err for word in (b"Traceback", b"Exception ignored", b"Fatal Python error"))


def hear_hangups() -> None:
    """As in a terminal, also where this runs under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Place:
    """A project and a home of its own for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "project", folder / "home"
        self.folder.mkdir(parents=True)
        (self.folder / "s.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in REPLIES))
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "AGENTCLI_HOME": str(self.home),
            "OLLAMA_HOST": "127.0.0.1:9",
            "LANG": "C.UTF-8",
        }

    def start(self, *arguments: str, stdout: int | BinaryIO = subprocess.PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agentcli", "-m", "scripted/s.jsonl", "-p", "go", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=subprocess.PIPE, preexec_fn=hear_hangups,  # noqa: PLW1509  # it takes no lock
        )  # fmt: skip

    def run(self, *arguments: str) -> Ended:
        with self.start(*arguments, "--output-format", random.choice(("json", "stream-json"))) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
            return Ended(process.returncode, out, err)

    @property
    def database(self) -> Path:
        return self.home / "state" / "sessions.db"

    def use(self) -> str:
        """Have a session; gives its id."""
        return str(json.loads(self.run().out.splitlines()[-1])["session_id"])


# Each fault makes its run in a fresh place.


def signals(place: Place) -> Ended:
    first, second = random.choice(SIGNALS), random.choice((None, *SIGNALS))
    with place.start("--output-format", random.choice(("json", "stream-json"))) as process:
        time.sleep(random.uniform(0, 0.5))
        was_heard = heeds_signals(process.pid)
        process.send_signal(first)
        if second is not None:
            time.sleep(random.choice((0, 0.001, 0.01, 0.1)))
            process.send_signal(second)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Ended(process.returncode, out, err, was_heard)


def heeds_signals(pid: int) -> bool:
    """True once the program has said what SIGTERM means; where that cannot be seen it is taken to have."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def home_is_a_file(place: Place) -> Ended:
    place.home.write_text("")
    return place.run()


def state_is_a_file(place: Place) -> Ended:
    place.home.mkdir()
    (place.home / "state").write_text("")
    return place.run()


def home_is_read_only(place: Place) -> Ended:
    place.use()
    with mounted("--bind", place.home, place.home):
        subprocess.run(["mount", "-o", "remount,ro,bind", place.home], check=True)
        return place.run(*random.choice(((), ("-c",))))


def home_is_full(place: Place) -> Ended:
    place.home.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=256k", "none", place.home):
        room = random.choice((0, 16, 64, 128)) * 1024
        with (place.home / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                filler.truncate(max(0, filler.tell() - room))
        return place.run("--verbose")


def database_is_damaged(place: Place) -> Ended:
    place.use()
    content = bytearray(place.database.read_bytes())
    match random.randrange(4):
        case 0:
            content = bytearray(os.urandom(5_000))
        case 1:
            content = content[: random.randrange(len(content))]
        case 2:
            for _ in range(200):
                content[random.randrange(len(content))] ^= 0xFF
        case _:
            content = bytearray()
    place.database.write_bytes(content)
    return place.run(*random.choice(((), ("-c",))))


def database_is_newer(place: Place) -> Ended:
    place.use()
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("PRAGMA user_version = 99")
    return place.run(*random.choice(((), ("-c",))))


def entry_is_damaged(place: Place) -> Ended:
    place.use()
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("UPDATE entries SET body = ? WHERE seq = ?", (random.choice(("", "{", "[]", '{"kind":1}')), 2))
        database.commit()
    return place.run("-c")


def session_is_unknown(place: Place) -> Ended:
    return place.run("-r", random.choice(("nope", "00000000", "ü", "%")))


def session_is_taken(place: Place) -> Ended:
    return place.run("--session-id", place.use())


def session_is_open(place: Place) -> Ended:
    id = place.use()
    with place.start("-r", id, "--output-format", "stream-json") as holder:
        assert holder.stdout is not None
        holder.stdout.readline()  # its first line comes when the session is open
        ended = place.run("-r", id)
        holder.communicate(timeout=PATIENCE_S)
    return ended


def budget_is_used_up(place: Place) -> Ended:
    (place.folder / "s.jsonl").write_text('{"text": "dear", "usage": {"cost_usd": 2}}\n')
    place.use()
    return place.run("-c", "--max-budget-usd", "1")


def output_is_full(place: Place) -> Ended:
    with Path("/dev/full").open("wb") as full, place.start("--output-format", "json", stdout=full) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
        return Ended(process.returncode, b"", err, was_read=False)


def reader_leaves(place: Place) -> Ended:
    with place.start("--output-format", "stream-json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        return Ended(process.wait(PATIENCE_S), b"", process.stderr.read(), was_read=False)


FAULTS: tuple[Callable[[Place], Ended], ...] = (
    home_is_a_file, state_is_a_file, home_is_read_only, home_is_full, database_is_damaged, database_is_newer,
    entry_is_damaged, session_is_unknown, session_is_taken, session_is_open, budget_is_used_up,
    output_is_full, reader_leaves,
)  # fmt: skip


class CannotBeMade(Exception):
    """Not by this person on this machine."""


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    if os.geteuid() or subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
        raise CannotBeMade
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", arguments[-1]], check=True)


def main(runs: int, seed: int) -> int:
    random.seed(seed)
    counts: Counter[str] = Counter()
    codes: dict[str, Counter[int]] = {}
    with tempfile.TemporaryDirectory(prefix="agentcli-faults-") as folder:
        for number in range(runs):
            fault = signals if number % 3 == 0 else random.choice(FAULTS)
            try:
                ended = fault(Place(Path(folder, str(number))))
            except CannotBeMade:
                counts["could not be made here"] += 1
                continue
            codes.setdefault(fault.__name__, Counter())[ended.code] += 1
            if not ended.was_heard:
                counts["signalled before the program's first line"] += 1
                continue
            counts["runs"] += 1
            counts["without a result line"] += not ended.has_result
            counts["with a traceback"] += ended.has_traceback
            if not ended.has_result or ended.has_traceback:
                print(
                    f"{fault.__name__}, run {number}: exit {ended.code}\n  {ended.out[-300:]!r}\n  {ended.err[-1500:]!r}"
                )
    for name, found in codes.items():
        print(f"{name:20} exit codes {', '.join(f'{code} ({times})' for code, times in sorted(found.items()))}")
    print(f"seed {seed}: {', '.join(f'{name} {times}' for name, times in counts.items())}")
    return int(bool(counts["without a result line"] or counts["with a traceback"]))


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(given + [RUNS, 1][len(given) :])))
