"""A place to judge commands from: workspace /ws, home /home/u, nothing on the disk looked at."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from agentcli.safety.commands import CommandAnalysis, Places, analyse

_SECRET = re.compile(r"(^|/)(\.env(\.[^/]*)?|\.netrc|id_rsa|[^/]*\.(pem|key))$")


def is_readable(path: Path) -> bool:
    normal = posixpath.normpath("/" + str(path).lstrip("/"))
    return (normal == "/ws" or normal.startswith("/ws/")) and not _SECRET.search(normal)


PLACES = Places(Path("/ws"), (Path("/ws"),), Path("/home/u"), is_readable)


def judged(command: str, places: Places = PLACES) -> CommandAnalysis:
    return analyse(command, places=places)


def cases(name: str) -> list[str]:
    """The commands of a file beside this one, one a line; `↵` stands for a newline."""
    text = (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")
    return [line.replace("↵", "\n") for line in text.splitlines()]
