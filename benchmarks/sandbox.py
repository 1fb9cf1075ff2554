"""What confinement costs a command: `true` plain and in each confinement that works here, interleaved in one loop.

The workspace has a repository with a nested one, the home has secrets, some protected names are missing: the layout that
commands get. Times are wall milliseconds from before the preparation to after the clean-up, as the caller sees them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from agentcli.infra.sandbox.bounds import Bounds, Confinement
from agentcli.infra.sandbox.confinement import choose_confinement
from agentcli.infra.sandbox.unconfined import Unconfined

BUDGET_MS = 10, 20  # median over plain, on a quiet machine and on a busy one
SECRETS = ".ssh .aws .gnupg .config/gh .netrc .docker .kube .npmrc .pypirc .git-credentials".split()
PROTECTED = (".agentcli", ".vscode", ".mcp.json", ".idea")


def surroundings(base: Path) -> Bounds:
    home, ws = base / "home", base / "ws"
    for name in SECRETS[:5]:
        (home / name).mkdir(parents=True)
    for folder in (ws, ws / "vendor/lib"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for number in range(200):
        (ws / f"src/package_{number}").mkdir(parents=True)
    return Bounds("workspace-write", (ws,), home, masked=tuple(home / s for s in SECRETS), protected=PROTECTED)


def run_plain(bounds: Bounds) -> None:
    subprocess.run(["true"], cwd=bounds.roots[0], stdin=subprocess.DEVNULL, start_new_session=True, check=True)


def run_in(confinement: Confinement, bounds: Bounds) -> None:
    with confinement.launch(["true"], cwd=bounds.roots[0], bounds=bounds) as launch:
        subprocess.run(
            launch.argv,
            pass_fds=launch.pass_fds,
            cwd=bounds.roots[0],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )


def prepare(confinement: Confinement, bounds: Bounds) -> None:
    with confinement.launch(["true"], cwd=bounds.roots[0], bounds=bounds):
        pass


def milliseconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1_000


def main(rounds: int = 100) -> None:
    found = {
        kind: choose_confinement(tmp=Path(tempfile.gettempdir()), kinds=(kind,)) for kind in ("bubblewrap", "landlock")
    }
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        bounds = surroundings(Path(folder).resolve())
        ways: dict[str, Callable[[], None]] = {"plain": lambda: run_plain(bounds)}
        for kind, confinement in found.items():
            if isinstance(confinement, Unconfined):
                print(f"{kind} does not work here: {confinement.why}")
                continue
            ways[kind] = lambda confinement=confinement: run_in(confinement, bounds)
            ways[f"{kind}, preparation alone"] = lambda confinement=confinement: prepare(confinement, bounds)
        for way in ways.values():
            way()
        times = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(milliseconds(way))
    plain = median(times["plain"])
    print(f"{'':30}{'median':>8}{'p95':>8}{'over plain':>12}{'ratio':>8}   (ms, {rounds} rounds)")
    for name, taken in times.items():
        p95 = sorted(taken)[int(len(taken) * 0.95)]
        middle = median(taken)
        print(f"{name:30}{middle:8.2f}{p95:8.2f}{middle - plain:12.2f}{middle / plain:8.1f}")
    if "bubblewrap" in times:
        over = median(times["bubblewrap"]) - plain
        verdict = (
            "within" if over <= BUDGET_MS[0] else "within, if the machine is busy," if over <= BUDGET_MS[1] else "OVER"
        )
        print(
            f"bubblewrap: {over:.1f} ms over plain, {verdict} the budget of {BUDGET_MS[0]} ms ({BUDGET_MS[1]} when busy)"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
