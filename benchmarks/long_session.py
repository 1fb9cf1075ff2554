"""CPU time of a turn and of a round, early and late in a session.

Turns are prompts that a scripted model answers, without network or disk. Rounds belong to one turn, each with a call,
and come from a scripted model and from a server on loopback, whose bodies have to be sent whole: what sending them
takes by itself is shown beside that.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopback import loopback, median, workspace

from agentcli import Agent
from agentcli.agent.events import TurnStarted

TURNS, ROUNDS = 1_000, 2_000
SAMPLE = 40  # turns or rounds that are taken together
BOUND = 1.25
USAGE = {"input_tokens": 9, "output_tokens": 90}


def script(folder: Path, *replies: dict) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(f"{json.dumps(reply | {'usage': USAGE})}\n" for reply in replies))
    return f"scripted/{path}"


async def cpu_of_turns(folder: Path) -> list[float]:
    """Milliseconds of CPU time of each turn."""
    took = []
    async with Agent(script(folder, *[{"text": "It does. " * 40}] * TURNS), cwd=folder) as agent:
        for number in range(TURNS):
            before = time.process_time()
            await agent.run(f"{number}: does it work? " * 10)
            took.append((time.process_time() - before) * 1_000)
    return took


async def cpu_of_rounds(model: str, folder: str) -> list[float]:
    """Milliseconds of CPU time of each round of one turn."""
    marks = []
    async with Agent(model, cwd=folder) as agent:
        async for event in agent.stream("Read the modules."):
            if isinstance(event, TurnStarted):
                marks.append(time.process_time() * 1_000)
    return [later - earlier for earlier, later in itertools.pairwise(marks)]


def ms_of_sending(size: int) -> float:
    """Milliseconds of CPU time to make and send so many bytes, median."""
    here, there = socket.socketpair()
    threading.Thread(target=lambda: all(iter(lambda: there.recv(1 << 20), b"")), daemon=True).start()
    parts, took = [b"x" * 250] * (size // 250), []
    for _ in range(SAMPLE):
        before = time.thread_time()
        here.sendall(b",".join(parts))
        took.append((time.thread_time() - before) * 1_000)
    here.close()
    return median(took)


@contextmanager
def long_turns() -> Iterator[str]:
    with workspace() as (repository, home):
        os.environ |= {"AGENTCLI_HOME": home, "AGENTCLI_LIMITS_MAX_TURNS": str(ROUNDS + 1)}
        yield repository


def report(what: str, took: list[float], sending: float = 0.0) -> None:
    early, late = median(took[10 : 10 + SAMPLE]), median(took[-SAMPLE:])
    beside = f", {sending:.2f} of them to send the body" if sending else ""
    growth = (late - sending) / early
    print(f"{what:28} {early:6.2f} ms CPU early, {late:6.2f} late{beside}; {growth:.2f} x", end="")
    print("" if growth <= BOUND else f"   MISSED {BOUND}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["AGENTCLI_HOME"] = f"{name}/home"
        report(f"a turn, {TURNS:,} of them", asyncio.run(cpu_of_turns(Path(name))))
        with long_turns() as repository:
            calls = [
                {"tool_calls": [{"name": "file_read", "input": {"path": f"module_{n % 23}.py"}}]} for n in range(ROUNDS)
            ]
            model = script(Path(name), *calls, {"text": "done"})
            report(f"a round, {ROUNDS:,} of them", asyncio.run(cpu_of_rounds(model, repository)))
        with long_turns() as repository, loopback("rounds", deltas=ROUNDS) as (url, requests):
            os.environ |= {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": url}
            took = asyncio.run(cpu_of_rounds("anthropic/claude-sonnet-5-5", repository))
            report("the same, over HTTP", took, ms_of_sending(requests()[-1]["size"]))


if __name__ == "__main__":
    main()
