"""What an agent did to files is taken back, by edit or by shell; what a person did since stays."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent
from agentcli.events import OutputDelta, ToolFinished
from tests.app.running import Place, Ran, call
from tests.app.terminal import Terminal
from tests.app.undo_model import interleave
from tests.conformance.confining import confinement_for

BYPASS = ("--permission-mode", "bypassPermissions")


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [call("bash", command=command, **more)]}


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"tool_calls": [call("file_edit", path=path, old_string=old, new_string=new)]}


def go(place: Place, *replies: dict[str, Any], mode: str = "bypassPermissions") -> Ran:
    ran = place.run("-p", "go", "-m", place.script(*replies, {"text": "done"}), "--permission-mode", mode)
    assert ran.code == 0, ran.err
    return ran


def undo(place: Place, *flags: str, code: int = 0, command: str = "undo") -> dict[str, Any]:
    ran = place.run(command, *(flags or ("--yes",)), "--json")
    assert ran.code == code, (ran.out, ran.err)
    told: dict[str, Any] = json.loads(ran.out)
    return told


def changes(told: dict[str, Any]) -> dict[str, str]:
    return {file["path"]: file["change"] for file in told["files"]}


Tree = dict[str, tuple[int, bytes | str]]


def tree_of(folder: Path) -> Tree:
    """Kinds and modes, and contents or targets, of all but what is git's or was mounted on while a command ran."""
    found: Tree = {}
    for path in folder.rglob("*"):
        if ".git" in path.parts:
            continue
        mode = path.lstat().st_mode
        if mode & stat.S_ISVTX:
            continue
        held = str(path.readlink()) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else ""
        found[os.fsencode(path.relative_to(folder)).decode(errors="replace")] = (mode, held)
    return found


def git(place: Place, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
    return subprocess.run(command, cwd=place.folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(place: Place) -> Place:
    """A folder with a bit of everything, in no repository."""
    (place.folder / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    (place.folder / "sub/deep").mkdir(parents=True)
    (place.folder / "sub/deep/run.sh").write_text("#!/bin/sh\n")
    (place.folder / "sub/deep/run.sh").chmod(0o751)
    (place.folder / "sub/private").write_bytes(b"\0\1binary")
    (place.folder / "sub/private").chmod(0o600)
    (place.folder / "link").symlink_to("sub/deep")
    (place.folder / "empty").mkdir(mode=0o750)
    return place


WRECK = "rm -rf a.txt sub link empty; mkdir -p new/inner; echo x >new/inner/x; ln -s nowhere dangling"


@pytest.mark.slow
def test_tracked_files_that_were_not_copied_come_back_after_the_repository_lost_its_objects(project: Place) -> None:
    git(project, "init", "-q")
    for number in range(300):
        (project.folder / f"f{number}").write_text(f"{number}\n")
    time.sleep(0.05)  # what is written just before the index is copied
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    before = tree_of(project.folder)
    go(project, bash(f"{WRECK}; rm -rf f* .git/objects/*"))
    assert undo(project)["done"]
    assert tree_of(project.folder) == before


@pytest.mark.parametrize(
    ("command", "summary"),
    [
        ("rm -r sub link missing", "exit 1; 3 files deleted"),
        ("sed -i s/one/two/ a.txt && touch new", "no output; 1 file edited, 1 created"),
        ("mv a.txt b.txt", "no output; 1 file renamed"),
        ("mkdir -p made/inner", "no output; folder created"),
        ("git reset -q --hard", "no output; 1 file edited"),
        ("true", "no output"),
    ],
)
async def test_a_command_that_runs_directly_says_what_it_changed(project: Place, command: str, summary: str) -> None:
    git(project, "init", "-q")
    (project.folder / "kept").write_text("as committed\n")
    git(project, "add", "kept")
    git(project, "commit", "-qm", "first")
    (project.folder / "kept").write_text("not committed\n")
    model = project.script(bash(command), {"text": "done"})
    async with Agent(model, cwd=project.folder, permissions="bypassPermissions") as agent:
        [done] = [event async for event in agent.stream("go") if isinstance(event, ToolFinished)]
    *_, changed = summary.split("; ")
    assert done.summary == summary
    assert (f"[changes to the workspace: {changed}]" in str(done.result.content)) == (";" in summary)


@pytest.mark.full
@pytest.mark.slow
async def test_a_long_look_at_the_workspace_shows_how_far_it_is(project: Place) -> None:
    for number in range(12_000):  # in no repository: all of them are copied
        (project.folder / f"f{number}").write_text(f"{number}")
    model = project.script(bash("touch x"), {"text": "done"})
    async with Agent(model, cwd=project.folder, permissions="bypassPermissions") as agent:
        shown = [event.text async for event in agent.stream("go") if isinstance(event, OutputDelta)]
    assert "Recording the workspace so that /undo works: " in "".join(shown)


@pytest.mark.slow
@pytest.mark.parametrize("has_git", [True, False])
def test_everything_a_command_removed_comes_back_without_a_repository(project: Place, has_git: bool) -> None:
    if not has_git:
        bin = project.folder.parent / "bin"
        bin.mkdir()
        for name in ("bash", "sh", "rm", "mkdir", "ln", "cat", "env"):
            (bin / name).symlink_to(shutil.which(name) or name)
        project.environment["PATH"] = str(bin)
    before = tree_of(project.folder)
    go(project, bash(WRECK))
    assert set(tree_of(project.folder)) == {"new", "new/inner", "new/inner/x", "dangling"}
    listed = undo(project, "--list")
    assert not listed["done"]
    assert listed["turn"] == 1
    assert set(tree_of(project.folder)) == {"new", "new/inner", "new/inner/x", "dangling"}
    told = undo(project)
    assert told["done"]
    assert changes(told) == changes(listed)
    assert changes(told) == {
        **dict.fromkeys(before, "restored"),
        **dict.fromkeys(("new", "new/inner", "new/inner/x", "dangling"), "removed"),
    }
    assert tree_of(project.folder) == before
    assert undo(project, "--yes", code=1)["files"] == []


@pytest.mark.slow
def test_uncommitted_work_comes_back_and_what_is_gits_stays(project: Place) -> None:
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    (project.folder / "a.txt").write_text("not committed\n")
    (project.folder / ".gitignore").write_text("ignored/\n")
    (project.folder / "ignored").mkdir()
    (project.folder / "ignored/notes").write_text("only here\n")
    git(project, "stash", "push", "-q", "sub/private", "--include-untracked", "--keep-index")
    before = tree_of(project.folder)
    kept = (git(project, "stash", "list"), git(project, "ls-files", "-s"), git(project, "log", "--format=%H"))
    go(project, bash("git reset -q --hard; git clean -fdxq; rm -rf sub"))
    assert tree_of(project.folder) != before
    undo(project)
    assert tree_of(project.folder) == before
    assert (git(project, "stash", "list"), git(project, "ls-files", "-s"), git(project, "log", "--format=%H")) == kept


def test_ctrl_c_at_the_question_leaves_all_as_it_is(project: Place) -> None:
    go(project, edit("a.txt", "two", "TWO"))
    terminal = Terminal(project.folder, "undo")
    try:
        terminal.see("Undo\\?")
        terminal.settle()  # a signal that comes just before `input` begins to read is seen with the next key alone
        terminal.type("\x03")
        assert terminal.exit_code() == 1
    finally:
        terminal.close()
    assert "TWO" in (project.folder / "a.txt").read_text()
    assert changes(undo(project)) == {"a.txt": "restored"}


@pytest.mark.slow
def test_edits_of_dry_run_commands_are_undone(project: Place) -> None:
    confinement_for(f"bubblewrap, {'root' if os.getuid() == 0 else 'user'}")
    before = tree_of(project.folder)
    go(
        project,
        edit("a.txt", "two", "TWO"),
        bash("sed -i s/five/FIVE/ a.txt; mkdir m; echo 1 >m/1"),
        mode="acceptEdits",
    )
    assert "TWO" in (project.folder / "a.txt").read_text()
    assert "FIVE" in (project.folder / "a.txt").read_text()
    assert changes(undo(project)) == {"a.txt": "restored", "m": "removed", "m/1": "removed"}
    assert tree_of(project.folder) == before


def test_undo_names_the_command_that_moves_gits_branch_back(project: Place) -> None:
    git(project, "init", "-q", "-b", "main")
    for number in (1, 2):
        (project.folder / "a.txt").write_text(f"{number}\n")
        git(project, "add", "a.txt")
        git(project, "commit", "-q", "-m", f"commit {number}")
    head = git(project, "rev-parse", "HEAD").strip()
    time.sleep(1.1)  # the log of a branch has whole seconds
    go(
        project,
        edit("a.txt", "2", "3"),
        bash("git reset -q --hard HEAD~"),
        bash("git -c user.name=x -c user.email=x@x commit -q --allow-empty -m new"),
    )
    ran = project.run("undo", "--yes")
    [line] = [line for line in ran.out.splitlines() if "git reset" in line]
    moved = git(project, "rev-parse", "--short=7", "HEAD").strip()
    assert line == f"The git branch stays at {moved}. To move it back: git reset {head[:7]}"
    git(project, *line.rpartition("git ")[2].split())
    assert git(project, "status", "--porcelain", "a.txt") == ""


def test_later_changes_of_the_person_are_merged_or_stay(project: Place) -> None:
    file, new = project.folder / "a.txt", project.folder / "new.txt"
    clash, gone = project.folder / "clash.txt", project.folder / "gone.txt"
    clash.write_text("1\n2\n3\n")
    gone.write_text("1\n2\n3\n")
    go(
        project,
        edit("a.txt", "one", "ONE"),
        edit("clash.txt", "2", "two"),
        edit("gone.txt", "2", "two"),
        {"tool_calls": [call("file_write", path="new.txt", content="mine\n")]},
    )
    file.write_text(file.read_text().replace("six", "SIX"))
    clash.write_text(clash.read_text().replace("two", "zwei"))
    gone.unlink()
    new.write_text("mine\nand yours\n")
    (project.folder / "yours.txt").write_text("yours\n")
    told = undo(project, "--yes", code=1)
    assert changes(told) == {"a.txt": "merged", "clash.txt": "conflict", "gone.txt": "kept", "new.txt": "conflict"}
    assert not told["done"]
    assert file.read_text() == "one\ntwo\nthree\nfour\nfive\nSIX\n"
    assert clash.read_text() == "1\nzwei\n3\n"
    assert new.read_text() == "mine\nand yours\n"
    assert not gone.exists()
    assert (project.folder / "yours.txt").read_text() == "yours\n"


def test_undone_changes_can_be_reapplied(project: Place) -> None:
    before = tree_of(project.folder)
    go(project, edit("a.txt", "two", "TWO"), bash(WRECK))
    after = tree_of(project.folder)
    assert undo(project, "--yes", code=1, command="redo")["files"] == []
    for _ in range(2):
        undo(project)
        assert tree_of(project.folder) == before
        assert undo(project, command="redo")["done"]
        assert tree_of(project.folder) == after


@pytest.mark.slow
def test_turns_are_undone_one_by_one(project: Place) -> None:
    go(project, edit("a.txt", "two", "TWO"))
    script = project.script(edit("a.txt", "three", "THREE"), {"text": "done"})
    assert project.run("-c", "-p", "again", "-m", script, *BYPASS).code == 0
    assert undo(project)["turn"] == 2
    assert (project.folder / "a.txt").read_text().startswith("one\nTWO\nthree\n")
    assert undo(project)["turn"] == 1
    assert (project.folder / "a.txt").read_text().startswith("one\ntwo\nthree\n")


def test_the_model_is_informed_of_undone_changes(project: Place) -> None:
    go(project, edit("a.txt", "two", "TWO"))
    undo(project)
    shown = project.run("sessions", "show", session_of(project), "--json").out
    (note,) = [text for text in texts_of(json.loads(shown)["messages"]) if "undid changes" in text]
    assert "a.txt" in note


def session_of(place: Place) -> str:
    return str(json.loads(place.run("sessions", "list", "--json").out)[0]["id"])


def texts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [block["text"] for message in messages for block in message["content"] if block["type"] == "text"]


@pytest.mark.slow
def test_a_list_names_first_what_is_not_covered(project: Place) -> None:
    (project.folder / ".gitignore").write_text("node_modules\nsmall\n")
    for name, count in (("node_modules", 30), ("small", 3)):
        (project.folder / name).mkdir()
        for number in range(count):
            (project.folder / name / f"{number}.js").write_text("x\n")
    (project.folder / "large.bin").write_bytes(b"x" * 20_000)
    project.environment |= {"AGENTCLI_CHECKPOINTS_IGNORED_FILES": "10", "AGENTCLI_CHECKPOINTS_LARGEST_MB": "0.01"}
    go(project, bash("rm -rf node_modules small large.bin a.txt"))
    shown = project.run("undo", "--list").out.splitlines()
    first = [line for line in shown[1:3] if line.startswith("Not recorded")]
    assert len(first) == 2
    assert "large.bin" in first[0]
    assert "node_modules" in first[1]
    told = undo(project, "--yes", code=1)
    assert changes(told)["large.bin"] == "conflict"
    assert changes(told)["a.txt"] == changes(told)["small/0.js"] == "restored"
    assert not (project.folder / "node_modules").exists()


def test_nothing_is_recorded_where_the_settings_want_nothing(project: Place) -> None:
    project.environment["AGENTCLI_CHECKPOINTS_ENABLED"] = "false"
    go(project, edit("a.txt", "two", "TWO"))
    assert not (project.home / "state/checkpoints").exists()
    assert "checkpoints.enabled" in project.run("undo", "--yes").err


def test_a_session_that_is_not_stored_leaves_nothing(project: Place) -> None:
    script = project.script(bash(WRECK), {"text": "done"})
    assert project.run("-p", "go", "-m", script, "--no-session", *BYPASS).code == 0
    assert not (project.home / "state/checkpoints").exists()
    assert not list((project.home / "state/tries").glob("try-*"))


@pytest.mark.slow
def test_changes_of_a_job_are_undone(project: Place) -> None:
    before = tree_of(project.folder)
    job = bash("sleep 0.3; echo late >late.txt; rm a.txt", background=True)
    go(project, job, edit("sub/deep/run.sh", "sh", "bash"), bash("sleep 1"))
    assert not (project.folder / "a.txt").exists()
    undo(project)
    assert tree_of(project.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "rm -rf sub;", "rm -rf sub; sed -i s/two/2/ a.txt;"])
def test_changes_of_a_killed_program_are_undone(project: Place, command: str) -> None:
    if not command:  # in an empty folder
        shutil.rmtree(project.folder)
        project.folder.mkdir()
    before = tree_of(project.folder)
    script = project.script(bash(f"{command} touch begun; sleep 30"))
    project.kill_once((project.folder / "begun").exists, "-p", "go", "-m", script, *BYPASS)
    assert tree_of(project.folder) != before
    assert undo(project)["done"]
    assert tree_of(project.folder) == before


def slash(place: Place, text: str) -> str:
    """Run a slash command in the newest session; gives its output."""
    return place.run("-c", "-p", text, "-m", place.script({"text": "never asked for"}), *BYPASS).out


def test_a_rewind_reverts_files_the_conversation_or_both(project: Place) -> None:
    go(project, edit("a.txt", "two", "TWO"))
    script = project.script(edit("a.txt", "five", "FIVE"), {"text": "done"})
    assert project.run("-c", "-p", "two", "-m", script, *BYPASS).code == 0
    for command, said, two, five in (
        ("/rewind 2 files", "a.txt", "two", "five"),
        ("/redo yes", "Reapplied", "TWO", "FIVE"),
        ("/rewind 1 both", 'Rewound to before "two"', "TWO", "five"),
        ("/rewind 1 conversation", "No files were changed", "TWO", "five"),
    ):
        assert said in slash(project, command)
        assert (project.folder / "a.txt").read_text() == f"one\n{two}\nthree\nfour\n{five}\nsix\n"


def test_without_anyone_to_ask_the_slash_command_only_lists(project: Place) -> None:
    go(project, edit("a.txt", "two", "TWO"))
    for command, said, text in (("/undo", "/undo yes", "TWO"), ("/undo yes", "Undid", "two")):
        assert said in slash(project, command)
        assert text in (project.folder / "a.txt").read_text()


@pytest.mark.full
@pytest.mark.slow
async def test_random_interleavings_end_as_a_model_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    for seed in range(12):
        assert await interleave(seed, tmp_path / str(seed)) == []


def test_undo_names_the_command_that_brings_back_a_stash_which_git_dropped(project: Place) -> None:
    git(project, "init", "-q", "-b", "main")
    (project.folder / "a.txt").write_text("1\n")
    git(project, "add", "a.txt")
    git(project, "commit", "-q", "-m", "first")
    (project.folder / "a.txt").write_text("2\n")
    git(project, "stash", "-q")
    go(project, bash("git stash pop"))
    assert (project.folder / "a.txt").read_text() == "2\n"
    [line] = [line for line in project.run("undo", "--yes").out.splitlines() if "stash" in line and "undid" not in line]
    git(project, *line.partition(": git ")[2].split())
    git(project, "stash", "pop", "-q")
    assert (project.folder / "a.txt").read_text() == "2\n"
