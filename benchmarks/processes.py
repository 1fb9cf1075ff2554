"""What is left behind by commands that try to, at every kind of end; and what starting a command costs.

`SIGKILL` ends a real one-shot run whose scripted model has called bash; the other ends are a program with a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from agentcli.infra.sandbox.local import LocalSandbox  # noqa: E402  the checkout, wherever this is started
from agentcli.tools.command import Command  # noqa: E402
from tests.unit.sandbox.trees import ENDS, TREES, alive  # noqa: E402

PATIENCE_S = 3.0


def mark() -> str:
    return f"{random.randrange(10**8, 10**9)}.5"


def wait_until(is_so, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


def one_shot_killed(name: str) -> tuple[int, int]:
    """How many processes a command had, and how many were left after agentcli was killed."""
    own = mark()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.jsonl")
        call = {"name": "bash", "input": {"command": TREES[name].replace("MARK", own)}}
        script.write_text(json.dumps({"tool_calls": [call]}) + "\n" + json.dumps({"text": "done"}) + "\n")
        environment = {**os.environ, "AGENTCLI_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
        program = subprocess.Popen(
            [sys.executable, "-m", "agentcli", "-p", "go", "-m", f"scripted/{script}", "--permission-mode",
             "bypassPermissions", "--sandbox", "danger-full-access"],
            cwd=folder, env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: alive(own), 20)
        time.sleep(0.3)
        grown = len(alive(own))
        program.kill()
        program.wait()
        wait_until(lambda: not alive(own), PATIENCE_S)
        return grown, len(alive(own))


def session_ended(end: str, confinement: str) -> tuple[int, int]:
    """The same for all commands at once, at one of the ends of `tests.unit.sandbox.trees`."""
    own, grown = mark(), 0
    with tempfile.TemporaryDirectory() as folder:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.sandbox.trees", end, folder, own, confinement],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        while end == "time-out" and program.poll() is None and grown < len(TREES):
            grown = max(grown, len(alive(own)))
        for line in program.stdout:
            grown = max(grown, len(alive(own)))
            if end == "kill":
                program.kill()
            if line == "ended\n":
                break
        wait_until(lambda: not alive(own), PATIENCE_S)
        left = len(alive(own))
        program.kill()
        program.wait()
    return grown, left


async def cost(runs: int = 100) -> tuple[float, list[float]]:
    """Milliseconds of the first `true` of a session, and of later ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sandbox = LocalSandbox([folder], environment={"PATH": os.environ["PATH"]}, job_folder=folder / "jobs")
        took = []
        for _ in range(runs + 1):
            started = time.perf_counter()
            await sandbox.run(Command("true", folder, timeout_s=60))
            took.append((time.perf_counter() - started) * 1000)
        await sandbox.aclose()
    return took[0], took[1:]


def floor(runs: int = 100) -> list[float]:
    took = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", "true"], stdout=subprocess.PIPE, start_new_session=True, check=False
        )
        took.append((time.perf_counter() - started) * 1000)
    return took


def main() -> None:
    total = untested = 0
    for name in TREES:
        grown, left = one_shot_killed(name)
        total += left
        print(f"{name:<30} SIGKILL of a one-shot run: {grown:>3} processes, {left} left")
    for confinement in ("none", "bubblewrap", "landlock"):
        for end in ENDS:
            grown, left = session_ended(end, confinement)
            total += left
            untested += grown < len(TREES)
            print(f"{f'all, confined by {confinement}':<30} {end:<26}: {grown:>3} processes, {left} left")
    first, later = asyncio.run(cost())
    plain = floor()
    print(
        f"bash true              {statistics.median(later):.1f} ms (90th {sorted(later)[90]:.1f}), the first {first:.1f} ms"
    )
    print(f"the same by subprocess {statistics.median(plain):.1f} ms (90th {sorted(plain)[90]:.1f})")
    print(f"left behind            {total}; rows whose commands did not all run: {untested}")
    sys.exit(total + untested > 0)


if __name__ == "__main__":
    main()
