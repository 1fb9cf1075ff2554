"""Reading the paths of submodules from git's index, as git writes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentcli.infra.sandbox.git.index import submodules_in


def git(folder: Path, *arguments: str, given: str | None = None) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, input=given, text=True)


@pytest.mark.parametrize(("algorithm", "hash_size"), [("sha1", 20), ("sha256", 32)])
@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_the_gitlinks_among_other_entries(tmp_path: Path, version: str, algorithm: str, hash_size: int) -> None:
    git(tmp_path, "init", "-q", f"--object-format={algorithm}")
    id = "1" * 2 * hash_size
    links = ["a", "build/é", "build/deep/er", "z" * 4000]
    files = [f"{folder}/{'n' * length}" for folder in ("b", "build", "w") for length in range(1, 20)]
    entries = [f"160000 {id}\t{link}" for link in links] + [f"100644 {id}\t{file}" for file in files]
    git(tmp_path, "update-index", "--add", "--index-info", given="\n".join(entries) + "\n")
    git(tmp_path, "update-index", "--index-version", version)
    if version == "3":
        (tmp_path / "new").write_text("x")
        git(tmp_path, "add", "-N", "new")
    assert (tmp_path / ".git/index").read_bytes()[7] == int(version)
    index = str(tmp_path / ".git/index")
    assert submodules_in(index, hash_size=hash_size) == tuple(sorted(links))
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{id},later")
    assert submodules_in(index, hash_size=hash_size) == tuple(sorted([*links, "later"]))


@pytest.mark.parametrize(
    "content", [b"", b"DIRC", b"DIRC\0\0\0\5\0\0\0\0" + bytes(20), b"DIRC\0\0\0\2\0\0\0\1" + bytes(40)]
)
def test_what_is_no_index_is_not_understood(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index").write_bytes(content)
    assert submodules_in(str(tmp_path / "index"), hash_size=20) is None
    assert submodules_in(str(tmp_path), hash_size=20) is None


def test_no_index_has_no_submodules(tmp_path: Path) -> None:
    assert submodules_in(str(tmp_path / "index"), hash_size=20) == ()
