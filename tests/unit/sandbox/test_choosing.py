"""Which confinement is chosen, and what the person is told when it is not the best."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.confinement import Bounds

linux = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap and Landlock are for Linux")


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@linux
def test_without_bubblewrap_it_is_landlock_and_the_reason_is_kept(tmp_path: Path) -> None:
    alone = choose_confinement(tmp=tmp_path, kinds=("landlock",))
    if alone.name != "landlock":
        pytest.skip(alone.problem)
    chosen = choose_confinement(tmp=tmp_path, programs=(tmp_path / "missing",))
    assert chosen.name == "landlock"
    assert "not installed" in chosen.problem
    assert "install bubblewrap" in chosen.problem


@linux
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "AppArmor"),
        ("echo 'bwrap: No permissions to creating new namespace' >&2; exit 1", "container"),
        ("echo 'bwrap: Unknown option --bind-fd' >&2; exit 1", "too old"),
        ("exit 3", "3"),
    ],
)
def test_a_bubblewrap_that_does_not_run_is_not_used_and_it_is_reported_why(
    tmp_path: Path, script: str, told: str
) -> None:
    chosen = choose_confinement(tmp=tmp_path, kinds=("bubblewrap",), programs=(program(tmp_path / "bwrap", script),))
    assert chosen.name == "none"
    assert told in chosen.problem


def test_with_nothing_commands_run_as_they_are(tmp_path: Path) -> None:
    chosen = choose_confinement(tmp=tmp_path, kinds=())
    assert chosen.name == "none"
    assert chosen.problem
    bounds = Bounds(profile="read-only", roots=(tmp_path,), home=tmp_path)
    with chosen.launch(["touch", str(tmp_path / "x")], cwd=tmp_path, bounds=bounds) as launch:
        assert launch.argv[0] == "touch"
        subprocess.run(launch.argv, check=True)
    assert (tmp_path / "x").exists()


@linux
@pytest.mark.parametrize(("times", "chosen"), [(9, "bubblewrap"), (1_000, "none")])
def test_a_socket_that_goes_while_bubblewrap_is_looked_at_costs_no_sandbox(
    tmp_path: Path, times: int, chosen: str
) -> None:
    if choose_confinement(tmp=tmp_path).name != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    runs = tmp_path / "runs"
    refuse = 'echo "bwrap: Can\'t mkdir parents for /gone/socket: Read-only file system" >&2; exit 1'
    script = f'echo x >>{runs}; if [ $(wc -l <{runs}) -le {times} ]; then {refuse}; fi; exec bwrap "$@"'
    looked_at = program(tmp_path / "bwrap", script)
    confinement = choose_confinement(tmp=tmp_path, kinds=("bubblewrap",), programs=(looked_at,))
    assert confinement.name == chosen
    assert ("/gone/socket" in confinement.problem) == (chosen == "none")


@linux
def test_the_best_has_nothing_to_excuse(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    chosen = choose_confinement(tmp=tmp_path)
    if chosen.name != "bubblewrap":
        pytest.skip(chosen.problem)
    assert chosen.problem == ""
