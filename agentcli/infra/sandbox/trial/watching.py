"""Watches what a tried command takes of the machine while it runs: nobody was asked about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from agentcli.tools.trial import TryLimits

_EVERY_S = 0.25
_LEAST_FREE_MEMORY = 0.03  # of all there is: below it the kernel would soon end somebody's program
_LEAST_FREE_DISK = 500_000_000  # bytes


class Watch:
    """Sets `sign` once the command takes too much; `why` says of what."""

    def __init__(self, folder: Path, limits: TryLimits) -> None:
        self.sign = asyncio.Event()
        self.why = ""
        self._folder = folder
        self._limits = limits
        self._free_at_first = shutil.disk_usage(folder).free

    async def run(self) -> None:
        while not self.why:
            await asyncio.sleep(_EVERY_S)
            self.why = await asyncio.to_thread(self._look)
        self.sign.set()

    def _look(self) -> str:
        free = shutil.disk_usage(self._folder).free
        if free < min(_LEAST_FREE_DISK, self._free_at_first // 2):
            return "it filled the disk"
        if self._free_at_first - free > self._limits.most_bytes and self._bytes() > self._limits.most_bytes:
            return f"it wrote more than {self._limits.most_bytes // 1_000_000:,} MB"
        if _free_memory() < _LEAST_FREE_MEMORY:
            return "it took the machine's memory"
        return ""

    def _bytes(self) -> int:
        """Of the stand-in, what is allocated on the disk."""
        found = 0
        for where, _, files in os.walk(self._folder):
            for name in files:
                with contextlib.suppress(OSError):
                    found += Path(where, name).lstat().st_blocks * 512
        return found


def _free_memory() -> float:
    """The part of the memory that programs can still get, tmpfs counted (proc_meminfo(5)); 1 where that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        numbers = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return numbers["MemAvailable"] / numbers["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 1.0
