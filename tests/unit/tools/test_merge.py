"""Two changes of one text are merged line by line, or not at all."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from agentcli.tools.text.diff import merged

BASE = b"1\n2\n3\n4\n5\n6\n7\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (b"1\n2\n3\n4\n5\n6\n7\nmine\n", b"first\n2\n3\n4\n5\n6\n7\n", b"first\n2\n3\n4\n5\n6\n7\nmine\n"),
        (b"1\n3\n4\n5\n6\n7\n", b"1\n2\n3\n4\n5\n7\n", b"1\n3\n4\n5\n7\n"),
        (b"1\n2\nsame\n4\n5\n6\n7\n", b"1\n2\nsame\n4\n5\n6\n7\n", b"1\n2\nsame\n4\n5\n6\n7\n"),
        (b"1\n2\nmine\n4\n5\n6\n7\n", b"1\n2\ntheirs\n4\n5\n6\n7\n", None),
        (b"1\n2\nmine\n3\n4\n5\n6\n7\n", b"1\n2\ntheirs\n3\n4\n5\n6\n7\n", None),
        (b"1\n2\nmine\n4\n5\n6\n7\n", b"1\n2\n3\ntheirs\n5\n6\n7\n", None),
        (b"", b"1\n2\n3\n4\n5\n6\nseven\n", None),
        (BASE + b"\0", b"one\n2\n3\n4\n5\n6\n7\n", None),
        (b"1\r\n2\n3\n4\n5\n6\n7", b"1\n2\n3\nvier\n5\n6\n7\n", b"1\r\n2\n3\nvier\n5\n6\n7"),
    ],
)
def test_changes_of_different_lines_are_merged_and_others_are_not(
    ours: bytes, theirs: bytes, both: bytes | None
) -> None:
    assert merged(BASE, ours, theirs) == both
    assert merged(BASE, theirs, ours) == both


@pytest.mark.slow
def test_a_merge_is_what_git_makes_of_it(tmp_path: Path) -> None:
    dice = random.Random(7)
    agreed = 0
    for _ in range(300):
        base = [f"{number}\n" for number in range(dice.randrange(1, 20))]
        texts = {"base": base, "ours": changed(base, dice), "theirs": changed(base, dice)}
        for name, lines in texts.items():
            (tmp_path / name).write_text("".join(lines))
        git = subprocess.run(
            ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=tmp_path, capture_output=True, check=False
        )
        both = merged(*("".join(lines).encode() for lines in texts.values()))
        if both is not None:  # what git merges beyond that are changes of neighbouring lines
            assert (git.returncode, git.stdout) == (0, both)
            agreed += 1
    assert agreed > 50


def changed(lines: list[str], dice: random.Random) -> list[str]:
    new = list(lines)
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(new) + 1)
        new[at : at + dice.randrange(2)] = [f"x{dice.randrange(1000)}\n"] * dice.randrange(3)
    return new
