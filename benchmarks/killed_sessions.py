"""Kills sessions (SIGKILL) at random moments and opens them again: python benchmarks/killed_sessions.py [RUNS] [SEED].

A scripted model reads, edits and runs commands that leave a mark each time they run. After the kill every message that
was told to a client has to be in the log, the next request has to be valid, no command may run a second time while the
session goes on, and `agentcli undo` has to bring the files back to what they were. Exits with 1 where something is wrong.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

RUNS, PATIENCE_S, LONGEST_S = 500, 60.0, 1.6
ROUNDS = 8


def replies(dice: random.Random) -> list[dict[str, Any]]:
    """A reply for each round; each command leaves a mark of its own."""
    script = []
    for number in range(ROUNDS):
        edit = {"path": "a.txt", "old_string": f"line {number}\n", "new_string": f"LINE {number}\n"}
        calls: list[dict[str, Any]] = [
            {
                "name": "bash",
                "input": {"command": f"echo ran-{number} >>marks; rm -f f{number}; echo {number} >made{number}"},
            },
            {"name": "file_edit", "input": edit},
            {"name": "file_read", "input": {"path": "a.txt"}},
            {"name": "bash", "input": {"command": f"echo again-{number} >>marks; sleep 0.02; chmod 600 a.txt"}},
        ]
        script.append({"text": f"Round {number}. " * 5, "tool_calls": dice.sample(calls, dice.randint(1, 4))})
    return [*script, {"text": "the end"}]


class Run:
    """A project, a home, and a session that is killed."""

    def __init__(self, base: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.base, self.folder = base, base / "project"
        self.folder.mkdir(parents=True)
        (self.folder / "a.txt").write_text("".join(f"line {number}\n\n" for number in range(ROUNDS)))
        for number in range(ROUNDS):
            (self.folder / f"f{number}").write_text(f"{number}\n")
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(base),
            "AGENTCLI_HOME": str(base / "home"),
            "OLLAMA_HOST": "127.0.0.1:9",
            "LANG": "C.UTF-8",
        }
        self.wrong: list[str] = []

    def start(self, script: list[dict[str, Any]] | None, *arguments: str) -> subprocess.Popen[bytes]:
        flags: tuple[str, ...] = ()
        if script is not None:
            file = self.base / f"script-{len(script)}.jsonl"
            file.write_text("".join(json.dumps(reply) + "\n" for reply in script))
            mode = ("--permission-mode", "bypassPermissions")
            flags = ("-m", f"scripted/{file}", *mode, "--output-format", "stream-json")
        command = [sys.executable, "-m", "agentcli", *arguments, *flags]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def ended(self, *arguments: str, script: list[dict[str, Any]] | None = None) -> tuple[int, str, str]:
        process = self.start(script, *arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out.decode(), err.decode()

    def play(self) -> str:
        """Gives how far it came."""
        before = tree_of(self.folder)
        process = self.start(replies(self.dice), "-p", "go")
        time.sleep(self.dice.uniform(0.15, LONGEST_S))
        process.kill()
        out, _ = process.communicate()
        told = [json.loads(line) for line in out.decode().splitlines(keepends=True) if line.endswith("\n")]
        session = next((line["session_id"] for line in told if line.get("subtype") == "init"), "")
        marks = self.marks()
        stored = json.loads(self.ended("sessions", "list", "--json")[1] or "[]")
        if not stored:
            if any(line["type"] in ("assistant", "user") for line in told):
                self.wrong.append("messages were told, and no session is stored")
            return "before it began"
        self.check_stored(session, told)
        code, out2, err = self.ended("-p", "go on", "-c", script=[{"text": "went on"}])
        if code or "went on" not in out2:
            self.wrong.append(f"it does not go on: {code} {err}")
        if self.marks() != marks:
            self.wrong.append(f"a command ran again: {marks} {self.marks()}")
        self.check_stored(session, told)
        code, _, err = self.ended("undo", "--yes")
        if tree_of(self.folder) != before:
            now = tree_of(self.folder)
            odd = {
                name: (before.get(name), now.get(name)) for name in {*before, *now} if before.get(name) != now.get(name)
            }
            self.wrong.append(f"not as before after undo ({code} {err}): {odd}")
        return "after the end" if told and told[-1]["type"] == "result" else "in the middle"

    def marks(self) -> list[str]:
        file = self.folder / "marks"
        found = file.read_text().split() if file.exists() else []
        if twice := [name for name, count in Counter(found).items() if count > 1]:
            self.wrong.append(f"ran twice: {twice}")
        return found

    def check_stored(self, session: str, told: list[dict[str, Any]]) -> None:
        code, out, err = self.ended("sessions", "show", session, "--json")
        if code:
            self.wrong.append(f"the session cannot be shown: {err}")
            return
        shown = json.loads(out)
        bodies = [entry["body"] for entry in shown["entries"]]
        ids = {entry["id"] for entry in shown["entries"]}
        results = {body["result"]["tool_use_id"] for body in bodies if body["kind"] == "tool_result"}
        for line in told:
            if line["type"] == "assistant" and line["message"]["id"] not in ids:
                self.wrong.append(f"a reply is lost: {line['message']['id']}")
            if line["type"] == "user":
                lost = {block["tool_use_id"] for block in line["message"]["content"]} - results
                self.wrong += [f"a result is lost: {id}" for id in lost]
        self.wrong += broken_pairs(shown["messages"])


def broken_pairs(messages: list[dict[str, Any]]) -> list[str]:
    """Calls without exactly one result in the next message, as providers want it; roles that do not alternate."""
    wrong = []
    for number, message in enumerate(messages):
        following = messages[number + 1]["content"] if number + 1 < len(messages) else []
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if calls != results and message["role"] == "assistant":
            wrong.append(f"calls {calls} have results {results}")
        if number and message["role"] == messages[number - 1]["role"]:
            wrong.append("roles do not alternate")
    return wrong


def tree_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files}


def main() -> int:
    runs, seed = [*map(int, sys.argv[1:]), *(RUNS, 0)[len(sys.argv) - 1 :]]
    became: Counter[str] = Counter()
    wrong = 0
    for number in range(seed, seed + runs):
        with tempfile.TemporaryDirectory() as name:
            run = Run(Path(name), number)
            became[run.play()] += 1
            if run.wrong:
                wrong += 1
                print(f"seed {number}:", *run.wrong, sep="\n  ", flush=True)
    print(f"killed {runs} times: {', '.join(f'{count} {what}' for what, count in became.most_common())}; {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
