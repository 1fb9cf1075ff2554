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
    "agentcli -m anthropic/claude-s": [
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-sonnet-4-6",
        "anthropic/claude-sonnet-5",
        "anthropic/claude-sonnet-5-5",
    ],
    "agentcli -m work/": ["work/qwen3:8b"],
    "agentcli sessions re": ["redact", "restore"],
    "agentcli sessions fsck --": ["--help", "--json", "--repair"],
    "agentcli hooks test PreC": ["PreCompact"],
    "agentcli config import c": ["claude-code", "codex", "copilot", "cursor"],
    "agentcli completion z": ["zsh"],
    "agentcli acp --log": ["--login"],
    "agentcli acp --permission-mode by": ["bypassPermissions"],
    "agentcli blame a": ["a.txt"],
    "agentcli -C fol": ["folder/"],
    "agentcli -n ": [],
}


@pytest.fixture
def asked(place: Place) -> Place:
    """A folder with a session, and a program on the PATH."""
    assert place.run("-m", place.script({"text": "Hi."}), "-p", "what: $(touch evil) is this?").code == 0
    program = place.folder.parent / "bin" / "agentcli"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentcli "$@"\n')
    program.chmod(0o755)
    place.environment["PATH"] = f"{program.parent}:{place.environment['PATH']}"
    (place.home / "config.toml").write_text(
        '[models.work."qwen3:8b"]\nwindow = 32768\n[providers.work]\nbase_url = "http://a"\n'
    )
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


def session_of(place: Place) -> str:
    return place.run("sessions", "list").out.split()[0]


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
    for line in ("agentcli -r ", "agentcli sessions show ", "agentcli undo --session "):
        assert offered(line) == [session_of(asked)], line
    assert not (asked.folder / "evil").exists()


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
        assert zsh.completed("agentcli -r ").rstrip() == f"agentcli -r {session_of(asked)}"
        assert zsh.completed("agentcli -m work/").rstrip().replace("\\", "") == "agentcli -m work/qwen3:8b"
    finally:
        zsh.close()
    assert not (asked.folder / "evil").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sessions", "models"])
def test_what_changes_is_asked_for_without_what_takes_long_to_import(asked: Place, kind: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "agentcli", "__complete", kind]
    done = subprocess.run(command, cwd=asked.folder, env=asked.environment, capture_output=True, text=True, check=True)
    assert done.stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "msgspec" in loaded
    assert loaded & {"typer", "rich", "prompt_toolkit", "anthropic", "httpx2", "httptools", "tiktoken"} == set()


def test_without_a_sound_installation_nothing_is_offered_and_nothing_is_reported_on_stdout(place: Place) -> None:
    assert place.run("__complete", "sessions").out == ""
    assert place.run("__complete", "nonsense").code == 0
    assert place.run("__complete").code == 0  # a shell may call it without a kind
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text("[")
    assert place.run("__complete", "models").out == ""


def test_another_shell_is_a_usage_error(place: Place) -> None:
    ran = place.run("completion", "zsch")
    assert ran.code == 2
    assert "choose from 'bash', 'zsh', 'fish'" in ran.err
