"""Seconds to the first word of a one-shot run with the embedded model: the first run, and one that finds its server.

Needs the installed model: run `agentcli local install` before. Ends the server that runs, and the one it started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from loopback import median

AGENTCLI = [sys.executable, "-m", "agentcli"]
QUESTIONS = ("What does a mutex do?", "Name three sorting algorithms.", "What is a closure?")
ASK = ["-m", "local/default", "--output-format", "stream-json", "--include-partial-messages", "--no-session", "-p"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        firsts, seconds = [], []
        for question in QUESTIONS:
            stop()
            firsts.append(first_word(question, folder))
            seconds.append(first_word(f"In one sentence: {question}", folder))
        stop()
    print(f"first word, first run   {median(firsts):.1f} s (max {max(firsts):.1f})")
    print(f"first word, second run  {median(seconds):.1f} s (max {max(seconds):.1f}); bound 3 s")


def stop() -> None:
    subprocess.run([*AGENTCLI, "local", "stop"], check=True, stdout=subprocess.DEVNULL)


def first_word(question: str, folder: str) -> float:
    began = time.monotonic()
    run = subprocess.Popen(
        [*AGENTCLI, *ASK, question],
        cwd=folder,
        env=os.environ | {"AGENTCLI_LOCAL_LINGER": "60"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            if json.loads(line).get("event", {}).get("type") == "content_block_delta":
                took = time.monotonic() - began
                run.stdout.read()
                return took
    raise SystemExit(f"no answer to {question!r}: exit code {run.returncode}")


if __name__ == "__main__":
    main()
