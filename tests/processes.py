"""What runs on this machine."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie. It may end while its file is read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
