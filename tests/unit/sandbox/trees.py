"""Commands that try to leave processes behind, and a program that runs them all and then comes to one of four ends.

Started as `python -m tests.unit.sandbox.trees END FOLDER MARK CONFINEMENT`; MARK is a number of seconds that nobody
else sleeps, CONFINEMENT `none` or what is to confine the commands: `bubblewrap`, `landlock`.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from functools import partial
from pathlib import Path

from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from agentcli.tools.command import Command, Profile


def hops(in_each: str) -> str:
    """A process that lives for a fraction of a millisecond and goes on in its child, 5,000 times."""
    script = f"import os, time\nfor _ in range(5000):\n if os.fork(): os._exit(0)\n {in_each}\ntime.sleep(60)"
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(script)} MARK & sleep MARK"


# Each runs `sleep MARK`. What multiplies stops by itself, at a hundred processes or after some seconds.
TREES = {
    "plain": "sleep MARK",
    "children": "sleep MARK & sleep MARK & wait",
    "nohup": "nohup sleep MARK >/dev/null 2>&1 & sleep MARK",
    "disown": "sleep MARK & disown -a; sleep MARK",
    "setsid": "setsid -f sleep MARK; sleep MARK",
    "double fork": "(setsid sh -c '(sleep MARK &) ; (sleep MARK &)' &); sleep MARK",
    "trap": "trap '' TERM HUP INT; (sleep MARK & sleep MARK); while :; do sleep MARK; done",
    "pipeline": "sleep MARK | sleep MARK | cat",
    "job control": "set -m; sleep MARK & sleep MARK & wait",
    "no environment": "env -i setsid -f bash -c 'exec -a worker sleep MARK & sleep MARK'; env -i sleep MARK",
    "stopped": "sleep MARK & kill -STOP $!; wait",
    "no output": "exec >/dev/null 2>&1 </dev/null; setsid -f sleep MARK; sleep MARK",
    "many": "b() { [ $1 = 0 ] && exec sleep MARK; sleep 0.1; b $(($1-1)) & b $(($1-1)) & wait; }; b 4",
    "hops": hops("pass"),
    "hops from session to session": hops("os.setsid()"),
}
LEAST_PROCESSES = len(TREES)
ENDS = ("time-out", "cancel", "close", "kill")


def alive(mark: str) -> list[int]:
    """The processes that have the mark in their arguments, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and any(mark in word for word in arguments_of(entry)[1:]):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def arguments_of(process: Path) -> list[str]:
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return [] if "tests.unit.sandbox.trees" in words else words


async def run(end: str, folder: Path, mark: str, confinement: str) -> None:
    """Returns, or waits to be killed, once every tree has grown."""
    profile: Profile = "danger-full-access" if confinement == "none" else "workspace-write"
    sandbox = LocalSandbox(
        [folder],
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        job_folder=folder / "jobs",
        limits=CommandLimits(profile=profile, home=folder),
        choose=partial(choose_confinement, tmp=folder, kinds=(confinement,)),
    )
    if sandbox.facts().confines != (confinement != "none"):
        print("cannot be confined so here", flush=True)
        return
    commands = [script.replace("MARK", mark) for script in TREES.values()]
    limit_s = 3.0 if end == "time-out" else 60.0
    calls = [asyncio.create_task(sandbox.run(Command(command, folder, timeout_s=limit_s))) for command in commands]
    if end in ("close", "kill"):
        for command in (TREES[name].replace("MARK", mark) for name in ("setsid", "double fork", "trap")):
            at_once = asyncio.Event()
            at_once.set()
            await sandbox.run(Command(command, folder), detach=at_once)
            await sandbox.run(Command(f"({command}) >/dev/null 2>&1 &", folder, timeout_s=limit_s))
    if end == "time-out":
        assert all(result.timed_out for result in await asyncio.gather(*calls))
        print("ended", flush=True)
        await asyncio.sleep(60)  # the session goes on
    await asyncio.sleep(0.5)
    async with asyncio.timeout(60):
        while (count := len(alive(mark))) < LEAST_PROCESSES:
            await asyncio.sleep(0.05)
    print("grown", count, flush=True)
    if end == "kill":
        await asyncio.sleep(60)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    if end == "cancel":
        print("ended", flush=True)
        await asyncio.sleep(60)
    await sandbox.aclose()
    print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
