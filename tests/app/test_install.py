"""`./install.sh` and the system's packages: what is missing is offered, and said what it is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pexpect
import pytest

INSTALL = Path(__file__).parents[2] / "install.sh"
NEEDED = ("sh", "uname", "tr", "grep", "sort", "paste", "cat", "dirname", "mkdir", "env")


class Machine:
    """A PATH with what the script calls, and nothing else; the Python on it makes no virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.calls = folder / "calls"
        self.environment = {"PATH": str(self.programs), "HOME": str(folder), "AGENTCLI_PREFIX": str(folder / "prefix")}
        for name in NEEDED:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.add("python3.13", 'case "$*" in *clear*) exit 1 ;; esac')
        self.add("apt-get", f'echo "apt-get $*" >>{self.calls}')
        self.add("id", "echo 1000")

    def add(self, name: str, code: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{code}\n")
        (self.programs / name).chmod(0o755)

    def install(self) -> str:
        done = subprocess.run(
            ["/bin/sh", INSTALL], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        assert b"could not make a virtual environment" in done.stderr  # it went on to that
        return done.stdout.decode()

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_reported_or_changed_where_nothing_is_missing(machine: Machine) -> None:
    machine.add("bwrap", "true")
    machine.add("git", "true")
    assert machine.install() == ""
    assert machine.called == []


def test_without_rights_the_command_is_named_and_what_is_weaker_without_it(machine: Machine) -> None:
    said = machine.install()
    assert "sudo apt-get install bubblewrap git\n" in said
    assert "Without bubblewrap Landlock holds commands, which is weaker" in said
    assert "Without git: no commits" in said
    machine.add("git", "true")
    assert "Without git" not in machine.install()
    assert machine.called == []


def test_root_installs_only_what_is_missing(machine: Machine) -> None:
    machine.add("id", "echo 0")
    machine.add("git", "true")
    assert machine.install() == "Installing these system packages: bubblewrap\n"
    assert machine.called == ["apt-get update -qq", "apt-get install -y -qq bubblewrap"]


@pytest.mark.parametrize(("answer", "calls"), [("y", 4), ("n", 0), ("", 0)])
def test_where_there_is_sudo_a_person_is_asked(machine: Machine, answer: str, calls: int) -> None:
    machine.add("sudo", f'echo "sudo $*" >>{machine.calls}\nexec "$@"')
    child = pexpect.spawn("/bin/sh", [str(INSTALL)], env=machine.environment, encoding="utf-8", timeout=20)
    child.expect(r"bubblewrap git\. Install them with sudo apt-get\? \[y/N\]")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert len(machine.called) == calls
    assert ("Without bubblewrap" in child.before) == (not calls)
