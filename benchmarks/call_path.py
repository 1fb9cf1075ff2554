"""Counts the crossings between files of agentcli that a reader of one call makes, from `run_call` to the sandbox and back.

A crossing is a pair of files of which one calls the other, however often it does. Each of the calls is made twice in a
session with a scripted model; the second time counts, when nothing is imported or set up any more. `-v` lists them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from agentcli import Agent

CALLS = {
    "file_read": {"path": "a.txt"},
    "bash, only reads": {"command": "ls"},
    "bash, dry run": {"command": "python3 -c 'print(1)'"},
}
ROOT = "/agentcli/"


class Crossings:
    """The pairs of the newest call."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], None] = {}
        self._is_on = False

    def look(self, frame: FrameType, event: str, _: Any) -> None:
        here = frame.f_code.co_filename
        if frame.f_code.co_name == "remember" and here.endswith("calls/model.py"):
            self._is_on = False
        if event != "call":
            return
        if frame.f_code.co_name == "_parse" and here.endswith("calls/run.py"):
            self._is_on, self.pairs = True, {}
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        if self._is_on and here != caller and ROOT in here and ROOT in caller:
            self.pairs[caller.rpartition(ROOT)[2], here.rpartition(ROOT)[2]] = None


async def main() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        work = Path(name)
        (work / "a.txt").write_text("one\n")
        for what, given in CALLS.items():
            script = work / "script.jsonl"
            call = {"tool_calls": [{"name": what.split(",")[0], "input": given}]}
            lines = [call, call, {"text": "end"}]
            script.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            crossings = Crossings()
            async with Agent(f"scripted/{script}", cwd=work) as agent:
                threading.setprofile(crossings.look)
                sys.setprofile(crossings.look)
                await agent.run("go")
                sys.setprofile(None)
                threading.setprofile(None)
            files = {file for pair in crossings.pairs for file in pair}
            print(f"{what:18} {len(crossings.pairs):3} crossings, {len(files):3} files")
            if "-v" in sys.argv:
                for pair in crossings.pairs:
                    print("    {} → {}".format(*pair))


asyncio.run(main())
