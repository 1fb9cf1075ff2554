"""Instructions of a start, counted by callgrind: they stay the same however busy the machine is (needs valgrind).

`python benchmarks/instructions.py [version] [scripted] [loopback] [terminal]` counts these, or all: `--version`, a
one-shot from a scripted model and from a server on loopback, and the terminal up to a key typed at exec on its screen.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

from loopback import environment, loopback, workspace
from terminal import COLUMNS, PROMPT, ROWS, Place, emulator, first_character, row_text

CALLGRIND = ("valgrind", "--tool=callgrind")
PROGRAM = (sys.executable, "-m", "agentcli")


def main(parts: list[str]) -> None:
    with loopback("hello") as (url, _), workspace() as (repository, home):
        env = environment(url, home) | {"PYTHONHASHSEED": "0"}
        place = Place(repository, home)
        place.environment["PYTHONHASHSEED"] = "0"
        script = place.script({"text": "Hi."})
        for name, arguments in {
            "version": ("--version",),
            "scripted": (*script, "-p", "go"),
            "loopback": ("-p", "What is 2+2?"),
        }.items():
            if not parts or name in parts:
                print(f"{name:<10}{of_run((*PROGRAM, *arguments), repository, env) / 1e6:7.1f} M", flush=True)
        if not parts or "terminal" in parts:
            print(f"{'terminal':<10}{of_first_key(place, script) / 1e6:7.1f} M")


def of_run(command: tuple[str, ...], folder: str, env: dict[str, str]) -> int:
    for _ in range(2):  # the first run compiles, and copies the new database
        subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True)
    counted = (*CALLGRIND, "--callgrind-out-file=/dev/null", *command)
    ran = subprocess.run(counted, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return int(re.findall(r"Collected : (\d+)", ran.stderr)[0])


def of_first_key(place: Place, script: tuple[str, str]) -> int:
    first_character(place, script, at_once=True)
    with tempfile.TemporaryDirectory() as folder:
        counted = (*CALLGRIND, "-q", f"--callgrind-out-file={folder}/counts", *PROGRAM, *script)
        process, terminal = pty.fork()
        if process == 0:
            termios.tcsetwinsize(0, (ROWS, COLUMNS))
            os.chdir(place.folder)
            os.execvpe(counted[0], counted, {**place.environment, "TERM": "xterm"})
        os.write(terminal, b"x")
        screen, stream = emulator()
        for data in reads(terminal):
            stream.feed(data)
            if row_text(screen, screen.cursor.y).startswith(f"{PROMPT}x"):
                break
        subprocess.run(["callgrind_control", "--dump", str(process)], capture_output=True, check=True)
        os.kill(process, 9)
        os.waitpid(process, 0)
        dumps = "".join(file.read_text(errors="replace") for file in Path(folder).iterdir())
    return sum(map(int, re.findall(r"^totals: (\d+)", dumps, re.MULTILINE)))


def reads(terminal: int) -> Iterator[bytes]:
    while data := os.read(terminal, 65_536):
        yield data


if __name__ == "__main__":
    main(sys.argv[1:])
