"""Reading git's configuration: the same as git, for whatever is in the file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from agentcli.infra.sandbox.git.config import Configuration, Setting, read_configuration
from tests.properties import examples

PIECES = (
    *('[a "b\0c"]', '[a "b.c\0"]', '[a "\0"]', "\0"),
    *("[core]", '[Core "Sub.x"]', "[core.Sub]", '[a.b "C"]', "[include]", '[includeIf "gitdir:~/x/"]', '["x"]', "[]"),
    *("hooksPath", "path", "a-1", "key=value", "k = v ; w", "=", " = ", "#", ";", '"', '\\"', "\\\\", "\\n", "\\x"),
    *("\n", "\n", "\n", "\r\n", "\\\n", "\\\r\n", " ", "\t", "\r", "[", "]", ".", "-", "_", "1", "ü", "\ufeff", "\v"),
)


@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@example("[core] hooksPath = hk\n")
@example('[core]\nhooksPath = "a # b" c  # d\n')
@example("[core]\nhooksPath = h\\\nk\n")
@example("[core]\nbare")
@example("[core]\nbare = a\\")
@example('[a "b\n"]')
@example("[a\n]x=1")
@example("[a")
@example('[a "b"')
@example('[a \r"b"]\nx')
@example("[a] x\r")
@example('[diff "external\0"] zz = evil')
@example('[diff "x.textconv\0y.z"]\nzz')
def test_it_reads_what_git_reads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text, newline="")
    done = subprocess.run(
        ["git", "config", "--file", str(file), "--no-includes", "--list", "-z"], capture_output=True, check=False
    )
    found = read_configuration(text)
    assert found.is_refused == (done.returncode != 0)
    if not found.is_refused:
        assert [as_listed(setting) for setting in found.settings] == spaced(done.stdout.decode()).split("\0")[:-1]


def as_listed(setting: Setting) -> str:
    section = ".".join(filter(None, (setting.section, setting.subsection)))
    name = f"{section}.{setting.key}" if section else setting.key
    return name if setting.value is None else spaced(f"{name}\n{setting.value}")


def spaced(text: str) -> str:
    """Which space is kept within a value differs between git's versions."""
    return text.replace("\t", " ").replace("\r", " ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hooksPath = hk  # ours", "hk"),
        ('HOOKSPATH=h"k"', "hk"),
        ("hooksPath = h\\\nk", "hk"),
        ('hooksPath = " a ;b" ; c', " a ;b"),
        ("hooksPath", None),
    ],
)
def test_values_as_people_write_them(text: str, value: str | None) -> None:
    assert read_configuration(f"[Core] {text}").settings == (Setting("core", "", "hookspath", value),)


def test_what_comes_before_an_error_is_read() -> None:
    found = read_configuration("[core]\nhooksPath = hk\n[core\n")
    assert found == Configuration((Setting("core", "", "hookspath", "hk"),), is_refused=True)
