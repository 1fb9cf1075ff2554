"""Our reading of commands, compared with bash itself: what its words become, and what it refuses.

Commands made here only print their arguments; the others are only checked for their syntax (`bash -n`).
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from agentcli.safety.commands.reader.commands import read_commands
from tests.unit.safety.commands.desk import cases, judged

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash here")

_PARTS = [
    "a", "b", "-", "/", "=", ":", ",", ".", "1", "'", '"', "\\", "$", "{", "}", "~", "#", "!", " ", "  ", "\t", "''",
    '""', "$'", "\\n", "\\x41", "\\'", "$x", "${x}", "$e", "${e:-d}", "${x:-d}", "${x:+p}", "${#x}", "{a,b}", "{1..3}",
    "~/", "$HOME", "\\\n", "$s", '"$s"', "%", "@", "^", "+", "]", "[", "${e-d}", "${x%b}", "é", "$1", "$@", '"$@"',
]  # fmt: skip
_SYNTAX = [
    "ls", "a", "b=1", "x", " ", " ", " ", ";", "&", "&&", "||", "|", "|&", "\n", "(", ")", "{ ", " }", ";;", "if ",
    "then ", "fi", "for ", "in ", "do ", "done", "while ", "case ", "esac", "else ", "! ", "time ", "<", ">", ">>",
    "2>", "&>", "<<<", "<<E\n", "\nE\n", "'", '"', "`", "$(", "$((", "))", "${x}", "${x:-", "}", "\\", "\\\n", "#",
    "f()", "function ", "<(", ">(", "$x", "*", "~", "until ", "2>&1", ">&-", "1", "-", "[ ", "]", "x)", "a=(", "$'",
]  # fmt: skip


def bash(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    assert BASH is not None
    environment = {"PATH": "/nowhere", "HOME": "/home/u", "LC_ALL": "C.UTF-8"}
    command = [BASH, "--noprofile", "--norc", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, cwd=cwd, check=False)


def check_words(count: int, seed: int, folder: Path) -> int:
    """How many random texts have words that are known; fails if bash makes others of one."""
    chance = random.Random(seed)
    known = 0
    for _ in range(count):
        text = "".join(chance.choices(_PARTS, k=chance.randint(1, 9)))
        command = f"x=ab; e=; s='p q'; printf '%s\\0' {text}"
        ran = bash("-c", command, cwd=folder)
        mine = [segment for segment in judged(command).segments if segment.text.startswith("printf")]
        if ran.returncode or ran.stderr or not mine or mine[0].words is None:
            continue
        known += 1
        words = list(mine[0].words[2:]) or [""]
        assert words == ran.stdout.decode().split("\0")[:-1], command
    return known


def check_syntax(count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        text = " " + "".join(chance.choices(_SYNTAX, k=chance.randint(1, 10)))
        ran = bash("-n", "-c", text)
        reading = read_commands(text)
        if reading.syntax_error:
            assert ran.returncode or ran.stderr, text
        elif not reading.problem and ran.returncode and b"syntax error" in ran.stderr:
            # Bash refuses it and we do not: nothing runs, but the words we see must not be called harmless lightly.
            assert len(text) < 200


@pytest.mark.slow
def test_words_become_what_bash_makes_of_them(tmp_path: Path) -> None:
    assert check_words(300, 1, tmp_path) > 60


@pytest.mark.slow
def test_bash_refuses_commands_that_we_call_invalid() -> None:
    check_syntax(300, 1)


@pytest.mark.full
@pytest.mark.slow
def test_many_more_words_become_what_bash_makes_of_them(tmp_path: Path) -> None:
    assert check_words(3_000, 2, tmp_path) > 500


@pytest.mark.full
@pytest.mark.slow
def test_much_more_of_what_we_say_bash_refuses_it_refuses() -> None:
    check_syntax(4_000, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allow", "block"])
def test_commands_that_we_understand_parse_in_bash(name: str) -> None:
    for command in cases(name):
        assert not read_commands(command).syntax_error or bash("-n", "-c", command).returncode, command
        if not read_commands(command).problem:
            assert bash("-n", "-c", command).returncode == 0, command


@pytest.mark.slow
def test_of_the_scripts_of_this_machine_we_say_of_none_that_bash_refuses_it() -> None:
    scripts = [path for folder in ("/usr/bin", "/etc/init.d", "/usr/sbin") for path in Path(folder).glob("*")]
    read = 0
    for path in scripts:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if not text.startswith(("#!/bin/sh", "#!/bin/bash", "#! /bin/sh")) or len(text) > 50_000:
            continue
        if bash("-n", "-c", text).returncode:
            continue
        read += 1
        assert not read_commands(text).syntax_error, path
    if read < 20:
        pytest.skip("there are too few scripts here")
