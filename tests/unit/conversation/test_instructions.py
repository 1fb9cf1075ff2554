"""Instruction files: which count, in which order, and how much of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentcli.conversation.instructions import BUDGET, Instructions, find_instructions, nested_instructions
from agentcli.conversation.rule_files import RuleFileFinder
from agentcli.settings.files import project_root, read_small_file


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found_in(
    cwd: Path, root: Path, user_files: Sequence[Path], home: Path | None = None, off: Sequence[str] = ()
) -> Instructions:
    return find_instructions(cwd, user_files, finder=RuleFileFinder(root=root, home=home, disabled=off))


def names(found: Instructions, below: Path) -> list[str]:
    return [str(path.relative_to(below)) for path, _ in found.files]


# Each with the folder that is worked in, the root, the user's files, and what is found. A name may end in what it is.
TREES = [
    (
        "home/AGENTS.md agents/AGENTS.md repo/AGENTS.md repo/a/b/AGENTS.md repo/a/c/AGENTS.md AGENTS.md",
        "repo/a/b", "repo", "home/AGENTS.md gone.md agents/AGENTS.md",
        "home/AGENTS.md agents/AGENTS.md repo/AGENTS.md repo/a/b/AGENTS.md",
    ),
    ("AGENTS.override.md AGENTS.md CLAUDE.md GEMINI.md", "", "", "", "AGENTS.override.md"),
    ("AGENTS.md CLAUDE.md GEMINI.md", "", "", "", "AGENTS.md"),
    ("CLAUDE.md GEMINI.md", "", "", "", "CLAUDE.md"),
    ("GEMINI.md", "", "", "", "GEMINI.md"),
    ("CLAUDE.md sub/AGENTS.md", "sub", "", "", "CLAUDE.md sub/AGENTS.md"),
    ("AGENTS.override.md/ AGENTS.md| CLAUDE.md", "", "", "", "CLAUDE.md"),
    ("docs/AGENTS.md CLAUDE.md->docs/AGENTS.md", "", "", "", "CLAUDE.md"),
    ("dotfiles/AGENTS.md user.md->dotfiles/AGENTS.md", "", "", "user.md", "user.md"),
    ("user.md other/AGENTS.md repo/", "other", "repo", "user.md", "user.md"),
    ("AGENTS.md", "", "", "n" * 300, "AGENTS.md"),
    ("AGENTS.md AGENTS.local.md sub/CLAUDE.local.md", "sub", "", "", "AGENTS.md AGENTS.local.md sub/CLAUDE.local.md"),
]  # fmt: skip


@pytest.mark.parametrize(("there", "cwd", "root", "users", "read"), TREES)
def test_files_come_from_the_user_then_from_the_root_down_to_here_one_of_a_folder(
    tmp_path: Path, there: str, cwd: str, root: str, users: str, read: str
) -> None:
    for name in there.split():
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        elif name.endswith("|"):
            os.mkfifo(tmp_path / name[:-1])
        elif "->" in name:
            (tmp_path / name.partition("->")[0]).symlink_to(name.partition("->")[2])
        else:
            put(tmp_path / name, f"from {name}")
    found = found_in(tmp_path / cwd, tmp_path / root, [tmp_path / name for name in users.split()])
    assert names(found, tmp_path) == read.split()
    assert all(text == f"from {path.resolve().relative_to(tmp_path)}" for path, text in found.files)


@pytest.mark.parametrize("secret", ["home/.ssh/id_rsa", "home/notes.txt", "repo/.env", "repo/deploy/server.pem"])
def test_a_link_out_of_the_project_or_to_a_secret_is_left_out_and_reported(tmp_path: Path, secret: str) -> None:
    target = put(tmp_path / secret, "SECRET")
    (tmp_path / "repo").mkdir(exist_ok=True)
    (tmp_path / "repo/AGENTS.md").symlink_to(target)
    found = found_in(tmp_path / "repo", tmp_path / "repo", [], tmp_path / "home")
    assert found.files == ()
    (notice,) = found.notices
    assert notice.startswith(f"{tmp_path}/repo/AGENTS.md was left out: it leads")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = put(tmp_path / "AGENTS.md", "x")
    os.truncate(file, 1 << 42)  # terabytes: reading it would end in a MemoryError
    (notice,) = found_in(tmp_path, tmp_path, []).notices
    assert notice.startswith(f"{file} was left out")


def test_empty_files_say_nothing(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", " \n\n")
    found = found_in(tmp_path, tmp_path, [])
    assert found == Instructions()
    assert found.to_reminder() is None


def test_files_up_to_the_budget_are_read_whole(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "é" * (BUDGET // 2 - 1))
    put(tmp_path / "sub/AGENTS.md", "xy")
    found = found_in(tmp_path / "sub", tmp_path, [])
    assert sum(len(text.encode()) for _, text in found.files) == BUDGET
    assert found.notices == ()


def test_a_file_over_the_budget_is_cut_at_a_line_with_a_note_of_the_rest(tmp_path: Path) -> None:
    file = put(tmp_path / "AGENTS.md", "first\n" + "é line\n" * 10_000)
    found = found_in(tmp_path, tmp_path, [])
    ((_, text),) = found.files
    *lines, note = text.splitlines()
    assert set(lines) == {"first", "é line", ""}
    assert len("\n".join(lines).encode()) <= BUDGET
    size = file.stat().st_size
    missing = f"{(size - len(chr(10).join(lines).encode())) / 1024:.1f} of {size / 1024:.1f} KiB are missing"
    assert missing in note
    assert f"file_read, path {file}, offset {len(lines)}]" in note
    assert file.read_text().splitlines()[: len(lines) - 1] == lines[:-1]
    (notice,) = found.notices
    assert missing in notice
    assert str(file) in notice


def test_a_large_file_takes_no_room_from_small_ones(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "x\n" * BUDGET)
    put(tmp_path / "sub/AGENTS.md", "near\n" * 1_000)
    put(tmp_path / "sub/AGENTS.local.md", "y\n" * BUDGET)
    found = found_in(tmp_path / "sub", tmp_path, [])
    assert names(found, tmp_path) == ["AGENTS.md", "sub/AGENTS.md", "sub/AGENTS.local.md"]
    large, near, local = (text for _, text in found.files)
    assert near == "near\n" * 1_000
    assert large.count("x\n") == local.count("y\n") == (BUDGET - len(near)) // 4


def test_a_file_of_one_endless_line_is_cut_too(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "x" * 3_000_000)
    found = found_in(tmp_path, tmp_path, [])
    assert found.files[0][1].startswith("x" * BUDGET + "\n[")
    assert "of 2929.7 KiB" in found.notices[0]


def test_files_of_deeper_folders_get_what_the_first_ones_left(tmp_path: Path) -> None:
    first = put(tmp_path / "AGENTS.md", "x\n" * (BUDGET // 4))
    put(tmp_path / "sub/AGENTS.md", "y\n" * BUDGET)
    finder = RuleFileFinder(root=tmp_path)
    found = nested_instructions([tmp_path / "sub"], [], tmp_path, finder=finder, known=[str(first)])
    assert found.files[0][1].count("y\n") == BUDGET // 4
    first.write_text("x\n" * BUDGET)
    found = nested_instructions([tmp_path / "sub"], [], tmp_path, finder=finder, known=[str(first)])
    assert found.files == ()
    assert found.notices == (f"{tmp_path}/sub/AGENTS.md was left out: instruction files together exceed 32 KiB.",)


def test_bytes_that_are_not_utf_8_and_a_bom_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    assert found_in(tmp_path, tmp_path, []).files[0][1] == "caf\ufffd"


def test_the_note_marks_each_file_with_its_path_as_data(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "use tabs\n")
    put(tmp_path / "sub/CLAUDE.md", "use spaces\n")
    note = found_in(tmp_path / "sub", tmp_path, []).to_reminder()
    assert note is not None
    assert note.is_reminder
    first = f'<instructions path="{tmp_path}/AGENTS.md">\nuse tabs\n</instructions>'
    second = f'<instructions path="{tmp_path}/sub/CLAUDE.md">\nuse spaces\n</instructions>'
    assert f"{first}\n{second}" in note.text


@pytest.mark.parametrize(("git", "root"), [("repo/.git/HEAD", "repo"), ("repo/.git", "repo"), (None, "repo/a/b")])
def test_the_root_is_the_nearest_folder_with_a_repository_else_here(tmp_path: Path, git: str | None, root: str) -> None:
    cwd = tmp_path / "repo/a/b"
    cwd.mkdir(parents=True)
    if git:
        put(tmp_path / git, "gitdir: elsewhere")
    assert project_root(cwd) == tmp_path / root


def test_of_two_repositories_the_inner_one_is_the_root(tmp_path: Path) -> None:
    put(tmp_path / ".git/HEAD", "")
    put(tmp_path / "inner/.git", "gitdir: ../.git/modules/inner")
    assert project_root(tmp_path / "inner") == tmp_path / "inner"


def test_a_file_that_leads_elsewhere_once_it_was_looked_at_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("SECRET")
    file = tmp_path / "AGENTS.md"
    file.symlink_to("mine")
    with pytest.raises(OSError, match="elsewhere"):
        read_small_file(file, real=file)
    assert read_small_file(file, real=tmp_path / "mine") == read_small_file(file) == b"SECRET"


def test_a_folder_with_the_name_of_a_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").mkdir()
    gc.collect()  # else what earlier tests left would be closed meanwhile
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(IsADirectoryError):
        read_small_file(tmp_path / "AGENTS.md")
    assert len(os.listdir("/dev/fd")) <= before


# Imports.


def test_imports_follow_the_file_that_names_them_once(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "See @docs/style.md, (@docs/tests.md) and @docs/style.md. Mail a@b.md, use @decorator.")
    put(tmp_path / "docs/style.md", "Tabs. @tests.md @../AGENTS.md")
    put(tmp_path / "docs/tests.md", "Run make check.")
    found = found_in(tmp_path, tmp_path, [])
    assert names(found, tmp_path) == ["AGENTS.md", "docs/style.md", "docs/tests.md"]
    assert found.notices == ()
    assert dict(found.files)[tmp_path / "docs/style.md"] == "Tabs. @tests.md @../AGENTS.md"


@pytest.mark.parametrize(
    "text", ["```\n@other.md\n```", "~~~ sh\n@other.md\n", "write `@other.md` so", "``a ` @other.md``", "x@other.md"]
)
def test_imports_inside_code_are_ignored(tmp_path: Path, text: str) -> None:
    put(tmp_path / "AGENTS.md", text)
    put(tmp_path / "other.md", "x")
    assert names(found_in(tmp_path, tmp_path, []), tmp_path) == ["AGENTS.md"]


def test_an_import_out_of_the_project_or_of_a_secret_is_left_out_and_reported(tmp_path: Path) -> None:
    put(tmp_path / "repo/AGENTS.md", "@../notes.md @.env @link.md")
    put(tmp_path / "notes.md", "x")
    put(tmp_path / "repo/.env", "KEY=1")
    (tmp_path / "repo/link.md").symlink_to("../notes.md")
    found = found_in(tmp_path / "repo", tmp_path / "repo", [], tmp_path)
    assert names(found, tmp_path) == ["repo/AGENTS.md"]
    left_out = [Path(notice.partition(" was left out")[0]).name for notice in found.notices]
    assert left_out == ["notes.md", ".env"]  # the link leads to the first


def test_imports_are_followed_five_files_deep(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "@1.md")
    for number in range(1, 8):
        put(tmp_path / f"{number}.md", f"@{number + 1}.md")
    found = found_in(tmp_path, tmp_path, [])
    assert names(found, tmp_path) == ["AGENTS.md", "1.md", "2.md", "3.md", "4.md", "5.md"]
    assert found.notices == (f"{tmp_path}/6.md was left out: imports lead deeper than 5 files.",)


def test_imports_share_the_budget(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "@a.md @b.md")
    put(tmp_path / "a.md", "a" * (BUDGET // 2))
    put(tmp_path / "b.md", "b" * (BUDGET // 2))
    found = found_in(tmp_path, tmp_path, [])
    assert names(found, tmp_path) == ["AGENTS.md", "a.md", "b.md"]
    assert [f"the beginning of {tmp_path}/{name}.md" in found.notices[n] for n, name in enumerate("ab")] == [True] * 2


def test_the_user_may_import_from_their_home(tmp_path: Path) -> None:
    user = put(tmp_path / "home/.config/agentcli/AGENTS.md", "@~/style.md")
    put(tmp_path / "home/style.md", "x")
    found = found_in(tmp_path / "repo", tmp_path / "repo", [user], tmp_path / "home")
    assert [file.name for file, _ in found.files] == ["AGENTS.md", "style.md"]
