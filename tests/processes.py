"""What runs on this machine."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie. It may end while its file is read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_lines() -> list[str]:
    """Those of all processes; one may end while it is looked at, and a zombie has none."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
    return lines


def has_bubblewrap() -> bool:
    try:
        return (
            subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


needs_bubblewrap = pytest.mark.skipif(not has_bubblewrap(), reason="Landlock asks about more, and hides nothing")
