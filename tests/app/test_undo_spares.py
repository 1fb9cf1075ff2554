"""Undo never takes away what the session did not make, whatever it could not see, and gives up no conflict for good."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, call
from tests.app.test_undo import BYPASS, bash, changes, edit, go, session_of, undo

DIRECT = {"AGENTCLI_PERMISSIONS_TRY": "false"}  # commands run in the workspace itself


@pytest.fixture
def project(place: Place) -> Place:
    place.environment |= DIRECT
    (place.folder / "a.txt").write_text("one\ntwo\nthree\n")
    return place


def large(path: Path) -> bytes:
    content = os.urandom(30_000)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "ignored", "command", "kept"),
    [
        ("big", "", "mv big moved", "moved"),  # its contents are in no checkpoint
        ("data/big", "data/\n", "echo >.gitignore", "data/big"),  # it was not covered before
        (".cache/x", "", "mv .cache data; touch a", "data/x"),
        ("b.pyc", "", "mv b.pyc b.bin; touch a", "b.bin"),
        ("private/x", "", "mv private public; touch a", "public/x"),  # excluded
        ("node_modules/m/x", "node_modules\n", "mv node_modules/m lib; touch a", "lib/x"),
    ],
)
def test_what_was_there_unseen_is_not_taken_for_made(
    project: Place, made: str, ignored: str, command: str, kept: str
) -> None:
    project.environment |= {
        "AGENTCLI_CHECKPOINTS_LARGEST_MB": "0.02",
        "AGENTCLI_CHECKPOINTS_IGNORED_MB": "0.02",
        "AGENTCLI_CHECKPOINTS_EXCLUDE": '["private"]',
    }
    content = large(project.folder / made)
    (project.folder / ".gitignore").write_text(ignored)
    go(project, bash(command))
    assert (project.folder / kept).read_bytes() == content
    project.run("undo", "--yes")
    assert (project.folder / kept).read_bytes() == content


def test_a_change_to_a_file_whose_contents_are_not_kept_is_a_conflict(project: Place) -> None:
    project.environment["AGENTCLI_CHECKPOINTS_LARGEST_MB"] = "0.01"
    go(project, bash("head -c 20000 /dev/zero >f; head -c 20000 /dev/zero >a.txt"))
    for name in ("f", "a.txt"):
        with (project.folder / name).open("r+b") as file:
            file.write(b"PERSON")
    assert set(changes(undo(project, "--yes", code=1)).values()) == {"conflict"}
    assert all((project.folder / name).read_bytes().startswith(b"PERSON") for name in ("f", "a.txt"))


@pytest.mark.slow
def test_changes_of_the_person_after_a_kill_are_not_attributed_to_agentcli(project: Place) -> None:
    (project.folder / "mine").write_text("before\n")
    script = project.script(bash("echo 2 >a.txt; touch begun; sleep 60"))
    project.kill_once((project.folder / "begun").exists, "-p", "go", "-m", script, *BYPASS)
    time.sleep(2.5)
    (project.folder / "mine").write_text("after\n")
    (project.folder / "new").write_text("new\n")
    undo(project, "--yes", code=1)
    assert (project.folder / "mine").read_text() == "after\n"
    assert (project.folder / "new").read_text() == "new\n"
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_a_folder_that_became_a_link_comes_back_with_what_was_in_it(project: Place) -> None:
    (project.folder / "d").mkdir()
    (project.folder / "d/x").write_text("precious\n")
    go(project, bash("mv d e && ln -s e d"))
    assert undo(project)["done"]
    assert not (project.folder / "d").is_symlink()
    assert (project.folder / "d/x").read_text() == "precious\n"
    assert not (project.folder / "e").exists()


@pytest.mark.slow
def test_a_folder_that_was_moved_is_back_under_its_old_name_alone(project: Place) -> None:
    for name in ("x", "deep/y"):
        (project.folder / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / "d" / name).write_text(name)
    go(project, bash("true"))
    time.sleep(0.1)
    go(project, bash("mv d e; cp -a e f; touch g"))
    assert undo(project)["done"]
    assert sorted(path.name for path in project.folder.iterdir()) == ["a.txt", "d"]
    assert (project.folder / "d/deep/y").read_text() == "deep/y"


def test_names_that_are_not_text_do_not_stop_commands(project: Place) -> None:
    name = os.fsencode(project.folder) + b"/caf\xe9"
    Path(os.fsdecode(name)).write_text("latin\n")
    go(project, bash("echo 2 >a.txt; rm caf*; echo >b$'\\xff'"))
    undo(project)
    assert Path(os.fsdecode(name)).read_text() == "latin\n"
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.slow
def test_files_that_come_and_go_hide_nothing(project: Place) -> None:
    (project.folder / "sub").mkdir()
    (project.folder / "sub/g").write_text("1\n")
    churn = "while :; do for i in 1 2 3 4 5 6 7 8 9; do echo >t$i; done; rm -f t?; done"
    other = subprocess.Popen(["bash", "-c", churn], cwd=project.folder)
    try:
        for number in range(5):
            script = project.script(bash(f"echo {number} >>sub/g"), {"text": "done"})
            project.run("-p", "go", "-m", script, *BYPASS)
    finally:
        other.kill()
        other.wait()
    for _ in range(20):  # a turn with conflicts is offered again, between those before it
        project.run("undo", "--yes")
        if (project.folder / "sub/g").read_text() == "1\n":
            break
    assert (project.folder / "sub/g").read_text() == "1\n"


@pytest.mark.slow
def test_a_turn_that_conflicts_blocks_no_older_one_and_can_be_undone_later(project: Place) -> None:
    (project.folder / "b.txt").write_text("b\n")
    go(project, edit("a.txt", "two", "TWO"))
    script = project.script(edit("b.txt", "b", "B"), {"text": "done"})
    assert project.run("-c", "-p", "again", "-m", script, *BYPASS).code == 0
    (project.folder / "b.txt").write_text("mine\n")
    ran = project.run("undo", "--yes")
    assert ran.code == 1
    assert "Could not undo turn 2 (again): all its files conflict. To undo earlier changes: agentcli undo" in ran.out
    assert undo(project)["turn"] == 1
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"
    (project.folder / "b.txt").write_text("B\n")
    assert undo(project)["turn"] == 2
    assert (project.folder / "b.txt").read_text() == "b\n"


@pytest.mark.slow
def test_a_session_that_conflicts_blocks_no_older_one(project: Place) -> None:
    (project.folder / "b.txt").write_text("b\n")
    go(project, edit("a.txt", "two", "TWO"))
    go(project, edit("b.txt", "b", "B"))
    (project.folder / "b.txt").write_text("mine\n")
    assert changes(undo(project, "--yes", code=1)) == {"b.txt": "conflict"}
    assert undo(project, "--yes", code=1, command="redo")["files"] == []
    assert changes(undo(project)) == {"a.txt": "restored"}
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert changes(undo(project, "--yes", code=1)) == {"b.txt": "conflict"}


@pytest.mark.slow
def test_only_what_conflicts_is_left_of_a_turn(project: Place) -> None:
    (project.folder / "b.txt").write_text("b\n")
    go(project, edit("a.txt", "two", "TWO"), edit("b.txt", "b", "B"))
    (project.folder / "b.txt").write_text("mine\n")
    assert changes(undo(project, "--yes", code=1)) == {"a.txt": "restored", "b.txt": "conflict"}
    (project.folder / "b.txt").write_text("B\n")
    assert changes(undo(project)) == {"b.txt": "restored"}
    assert undo(project, "--yes", code=1)["files"] == []
    undo(project, command="redo")
    undo(project, command="redo")
    assert (project.folder / "a.txt").read_text() == "one\nTWO\nthree\n"
    assert (project.folder / "b.txt").read_text() == "B\n"


def test_a_repository_of_its_own_name_is_gits(project: Place) -> None:
    go(project, bash("git init -q --bare r.git; echo 2 >a.txt"))
    undo(project)
    assert (
        subprocess.run(
            ["git", "--git-dir", "r.git", "fsck"], cwd=project.folder, capture_output=True, check=False
        ).returncode
        == 0
    )
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_a_database_is_undone_and_attributes_stay(project: Place) -> None:
    file = project.folder / "x.db"
    content = b"SQLite format 3\0" + bytes(1_000)
    file.write_bytes(content)
    os.setxattr(file, "user.tag", b"mine")
    go(project, bash("printf more >>x.db"))
    assert undo(project)["done"]
    assert (file.read_bytes(), os.getxattr(file, "user.tag")) == (content, b"mine")


@pytest.mark.full
@pytest.mark.slow
def test_a_killed_undo_is_finished_by_the_next_command(project: Place) -> None:
    for number in range(3_000):
        (project.folder / f"f{number}").write_text("old\n")
    go(project, bash("for f in f*; do echo new >$f; done"))
    project.kill_once(lambda: list(project.home.glob("state/tries/*/plan")), "undo", "--yes")
    project.run("undo", "--yes")
    assert {(project.folder / f"f{number}").read_text() for number in range(3_000)} == {"old\n"}
    project.run("-p", "go", "-m", project.script({"text": "done"}))
    assert {(project.folder / f"f{number}").read_text() for number in range(3_000)} == {"old\n"}


@pytest.mark.slow
def test_an_edit_of_a_file_that_is_written_all_the_time_can_be_undone(project: Place) -> None:
    job: Any = {
        "tool_calls": [
            call("bash", command="while :; do head -c 20000 /dev/zero >>log; sleep 0.005; done", background=True)
        ]
    }
    (project.folder / "log").write_bytes(bytes(2_000_000))
    go(project, job, bash("echo 2 >a.txt; sleep 0.5"))
    undo(project, "--yes")
    assert (project.folder / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_a_file_that_only_a_link_leads_to_by_now_is_a_conflict(project: Place) -> None:
    (project.folder / "d").mkdir()
    (project.folder / "d/x").write_text("before\n")
    go(project, edit("d/x", "before", "after"))
    (project.folder / "d").rename(project.folder / "e")
    (project.folder / "d").symlink_to("e")
    assert changes(undo(project, "--yes", code=1)) == {"d/x": "conflict"}
    assert (project.folder / "e/x").read_text() == "after\n"


@pytest.mark.slow
def test_unrecorded_changes_are_not_reported_as_undone(project: Place) -> None:
    project.environment["AGENTCLI_CHECKPOINTS_MOST_FILES"] = "1"
    (project.folder / "b.txt").write_text("b\n")
    ran = go(project, bash("echo new > new.txt"), bash("rm a.txt"))
    assert ran.err.count("checkpoints.most_files") == 1
    assert "cannot revert them" in ran.err
    assert undo(project, code=1) == {"session_id": session_of(project), "turn": 1, "files": [], "done": False}
    ran = project.run("undo", "--yes")
    assert ran.code == 1
    assert "were not recorded" in ran.out
    assert undo(project, command="redo", code=1)["done"] is False
    go(project, bash("echo new > new.txt"), edit("b.txt", "b", "B"))  # the edit is taken back, and yet not all
    told = undo(project, code=1)
    assert (changes(told), told["done"]) == ({"b.txt": "restored"}, False)


def test_where_nothing_is_left_to_undo_nothing_is_reported_to_be(project: Place) -> None:
    before = (project.folder / "a.txt").read_text()
    go(project, edit("a.txt", "two", "TWO"))
    (project.folder / "a.txt").write_text(before)
    told = undo(project, code=1)
    assert (changes(told), told["done"]) == ({"a.txt": "kept"}, False)
    assert undo(project, code=1)["files"] == []  # it is not offered again
