"""Secret values that git has, in repositories that are not as they should be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentcli.infra.sandbox.secret_files import SecretValues, git_state


def secrets_among(root: Path, names: Sequence[bytes]) -> set[bytes]:
    return {name for name in names if name.endswith(b".env")}


def test_questions_that_git_could_not_answer_are_asked_again(tmp_path: Path) -> None:
    root, programs = tmp_path / "ws", tmp_path / "bin"
    for folder in (root, programs):
        folder.mkdir()
    (root / ".env").write_text("API_KEY=canary-7731-xyz\n")
    subprocess.run(("git", "init", "-q"), cwd=root, check=True)
    subprocess.run(("git", "add", ".env"), cwd=root, check=True)
    git = programs / "git"
    git.write_text("#!/nowhere/interpreter\n")
    git.chmod(0o755)
    values = SecretValues({"PATH": str(programs)}, secrets_among)
    assert values.values_in([], [root]) == set()
    git.unlink()
    git.symlink_to(shutil.which("git") or "")
    assert values.values_in([], [root]) == {"canary-7731-xyz"}


def test_a_changed_value_is_found_whatever_time_the_file_is_given(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("API_KEY=canary-7731-xyz\n")
    values = SecretValues({"PATH": ""}, secrets_among)
    assert values.values_in([env], [tmp_path]) == {"canary-7731-xyz"}
    was = env.stat()
    env.write_text("API_KEY=canary-8842-abc\n")
    os.utime(env, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert values.values_in([env], [tmp_path]) == {"canary-8842-abc"}


@pytest.mark.parametrize("name", [".git", ".git/HEAD"])
def test_a_pipe_in_the_place_of_a_repository_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    assert git_state(tmp_path) == ()
