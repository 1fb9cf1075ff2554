"""Finds the ripgrep that ships with agentcli."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from agentcli.errors import ToolError


def find_rg() -> str:
    """The `rg` of this installation, else the machine's. Raises `ToolError` (dependency_error)."""
    bundled = shutil.which("rg", path=Path(sys.executable).parent)
    found = bundled or shutil.which("rg")
    if not found:
        raise ToolError("ripgrep is missing: reinstall agentcli, or install ripgrep.", kind="dependency_error")
    return found
