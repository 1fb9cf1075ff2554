"""Where the system gives too little memory the program says so and ends: it never hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.app.running import Place, call


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("ulimit -v 60000", "`ulimit -v` is 60000"),
        ("ulimit -v 131072", ""),
        ("ulimit -s 80000; ulimit -v 400000", ""),  # room for two threads
        ("ulimit -s 150000; ulimit -v 400000", ""),
        ("ulimit -s 250000; ulimit -v 400000", "Out of memory or threads"),
    ],
)
def test_with_too_little_memory_it_says_so_and_ends(place: Place, limits: str, told: str) -> None:
    script = place.script({"tool_calls": [call("grep_search", pattern="x")]}, {"text": "done"})
    command = ["bash", "-c", f'{limits}; exec "$@"', "bash", sys.executable, "-m", "agentcli", "-p", "hi", "-m", script]
    done = subprocess.run(
        command,
        check=False,
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
    )
    assert told in done.stderr.decode()
    assert done.returncode in ((1,) if told else (0, 1)), done.stderr.decode()
