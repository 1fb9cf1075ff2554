"""`agentcli completion`: what shells offer at Tab, asked of the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from agentcli.cli.subcommands import COMMANDS
from tests.app.running import Place

pytestmark = pytest.mark.slow  # each test starts shells and the program

CASES = {
    "agentcli ses": ["sessions"],
    "agentcli sess": ["sessions"],
    "agentcli --eff": ["--effort"],
    "agentcli --effort h": ["high"],
    "agentcli --permission-mode by": ["bypassPermissions"],
    "agentcli -C fol": ["folder/"],
    "agentcli --settings a": ["a.txt"],
    "agentcli -n ": [],
}


@pytest.fixture
def asked(place: Place) -> Place:
    """A folder with a file and a folder, and a program on the PATH."""
    program = place.folder.parent / "bin" / "agentcli"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentcli "$@"\n')
    program.chmod(0o755)
    place.environment["PATH"] = f"{program.parent}:{place.environment['PATH']}"
    (place.folder / "a.txt").touch()
    (place.folder / "folder").mkdir()
    return place


def script(place: Place, shell: str) -> Path:
    ran = place.run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    (folder := place.folder.parent / shell).mkdir()
    file = folder / "_agentcli"
    file.write_text(ran.out)
    return file


def run(place: Place, *command: str) -> list[str]:
    done = subprocess.run(command, cwd=place.folder, env=place.environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return sorted(line.partition("\t")[0] for line in done.stdout.splitlines())


def in_bash(place: Place, file: Path) -> Callable[[str], list[str]]:
    code = f"""
        source {file}
        COMP_WORDS=($1); [[ $1 != *' ' ]] || COMP_WORDS+=(''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        way=$(complete -p agentcli) way=${{way##*-F }}; ${{way% *}}
        for word in "${{COMPREPLY[@]}}"; do printf '%s\\n' "$word"; done"""
    return lambda line: run(place, "bash", "-c", code, "bash", line)


def in_fish(place: Place, file: Path) -> Callable[[str], list[str]]:
    return lambda line: run(place, "fish", "--no-config", "-c", f"source {file}; complete -C {line!r}")


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.full
@pytest.mark.parametrize(("shell", "ask"), [("bash", in_bash), ("fish", in_fish)])
def test_a_shell_offers_what_the_program_takes(
    asked: Place, shell: str, ask: Callable[[Place, Path], Callable[[str], list[str]]]
) -> None:
    needs(shell)
    offered = ask(asked, script(asked, shell))
    for line, words in CASES.items():
        assert [word.rstrip("/") for word in offered(line)] == [word.rstrip("/") for word in words], line
    assert set(COMMANDS) <= set(offered("agentcli "))


class Zsh:
    """An interactive zsh, in which somebody presses Tab."""

    def __init__(self, place: Place, file: Path) -> None:
        self._child = pexpect.spawn(
            "zsh", ["-f", "-i"], cwd=str(place.folder), env={**place.environment, "TERM": "dumb"}, encoding="utf-8"
        )
        self._child.sendline(
            f"PROMPT=; fpath=({file.parent} $fpath); autoload -Uz compinit; compinit -u -D; "
            "unsetopt auto_menu beep; show() { print -rn \"<$BUFFER>\" }; zle -N show; bindkey '^X' show; print rea''dy"
        )
        self._child.expect("ready")

    def completed(self, line: str) -> str:
        """The line after a Tab."""
        self._child.send(f"\x15{line}\t\x18")
        self._child.expect("<(.*?)>", timeout=20)
        assert self._child.match
        return str(self._child.match[1])

    def close(self) -> None:
        self._child.close(force=True)


@pytest.mark.full
def test_zsh_completes_what_the_program_takes(asked: Place) -> None:
    needs("zsh")
    zsh = Zsh(asked, script(asked, "zsh"))
    try:
        for line, words in CASES.items():
            typed = line.rpartition(" ")[2]
            if words:
                end = os.path.commonprefix(words) or typed  # noqa: RUF071 - of words, which are no paths
                done = f"{line.removesuffix(typed)}{end}".rstrip()
                assert zsh.completed(line).rstrip() == done, line
    finally:
        zsh.close()


def test_another_shell_is_a_usage_error(place: Place) -> None:
    ran = place.run("completion", "zsch")
    assert ran.code == 2
    assert "choose from 'bash', 'zsh', 'fish'" in ran.err
