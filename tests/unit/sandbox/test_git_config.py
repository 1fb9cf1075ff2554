"""Reading git's configuration by asking git, and without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcli.infra.sandbox.git_config import Configuration, Setting, find_git, find_named_paths, read_configuration


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


def test_names_are_split_at_their_first_and_last_dot() -> None:
    found = read_configuration('[A.b "C.d"]\nE = f\n[g "h\0i.j"]\nk = l\0m')
    assert found.settings[0] == Setting("a", "b.C.d", "e", "f")


@pytest.mark.parametrize("git", ["/usr/bin/git", "", "/nowhere/git", "/bin/false"])
def test_what_git_does_not_read_is_refused_and_still_names_paths(tmp_path: Path, git: str) -> None:
    (tmp_path / "config").write_text('[core]\nhooksPath = "hk"\n[include]\n\tpath = more\n[core\n')
    found = find_named_paths([str(tmp_path / "config")], "/home/me", git)
    assert (found.hooks[-1], found.included, found.is_refused) == ("hk", [str(tmp_path / "more")], True)


def test_a_file_that_is_too_large_to_be_read_whole_is_refused(tmp_path: Path) -> None:
    comments = ("#" + "x" * 98 + "\n") * 11_000
    (tmp_path / "config").write_text(f"{comments}[core]\nhooksPath = hk\n")
    assert find_named_paths([str(tmp_path / "config")], "/home/me", "/usr/bin/git").is_refused


def test_an_empty_file_needs_no_git() -> None:
    assert read_configuration("", "") == Configuration((), is_refused=False)


def test_no_git_is_taken_from_where_commands_can_write(tmp_path: Path) -> None:
    for name in ("ws/bin", "link", "own"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "git").symlink_to(tmp_path / "ws/bin/git" if name == "link" else "/bin/true")
    (tmp_path / "ws/bin/git").unlink()
    (tmp_path / "ws/bin/git").touch(0o755)
    path = os.pathsep.join(["ws/bin", *(str(tmp_path / name) for name in ("ws/bin", "link", "own"))])
    assert find_git(path, (tmp_path / "ws",)) == str(tmp_path / "own/git")
