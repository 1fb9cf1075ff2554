"""The far end of `RemoteSandbox`: in a file system of its own it does what it is asked, on a `LocalSandbox`.

Each call has a connection of its own, on which pickles cross: so everything that crosses is plain data.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

from agentcli.infra.sandbox.local import LocalSandbox


def serve(connection: Connection, sandbox: LocalSandbox, loop: asyncio.AbstractEventLoop) -> None:
    """Answer one call, until the client says `end`; before that it may say `cancel` or `detach`, or hang up."""
    what, given, named = connection.recv()
    detach = asyncio.Event()
    if named.pop("is_detached", False):
        detach.set()
    if what in ("run", "search"):
        named["on_output" if what == "run" else "take"] = lambda part: connection.send(("part", part))
    if what == "run":
        named["detach"] = detach
    work = asyncio.run_coroutine_threadsafe(reply(connection, sandbox, what, given, named), loop)
    with connection:
        try:
            while (heard := connection.recv()) != "end":
                if heard == "detach":
                    loop.call_soon_threadsafe(detach.set)
                else:
                    work.cancel()
        except (EOFError, OSError):
            work.cancel()


async def reply(connection: Connection, sandbox: LocalSandbox, what: str, given: Any, named: Any) -> None:
    part, _, name = what.rpartition(".")
    try:
        if part == "facts":
            found = getattr(sandbox.facts(given[0]), name)
            found = found(*given[1:], **named) if callable(found) else found
        else:
            found = getattr(sandbox.jobs if part else sandbox, name)(*given, **named)
        found = await found if inspect.isawaitable(found) else found
        if what == "read":
            with found as file:
                found = file.read()
        answer = ("answer", found)
    except (Exception, asyncio.CancelledError) as error:
        answer = ("error", error)
    try:
        connection.send(answer)
    except OSError:  # the client hung up
        return


async def main() -> None:
    given = json.loads(sys.argv[1])
    place, loop = Path(given["place"]), asyncio.get_running_loop()
    sandbox = LocalSandbox(
        [place / "ws"], environment=given["environment"], job_folder=place / "jobs", session_id=given["session_id"]
    )
    with Listener(given["address"]) as listener:
        print("ready", flush=True)
        while True:
            connection = await asyncio.to_thread(listener.accept)
            Thread(target=serve, args=(connection, sandbox, loop), daemon=True).start()


if __name__ == "__main__":
    asyncio.run(main())
