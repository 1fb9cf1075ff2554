"""Commands that are tried: nothing of them stays until it is kept, and what is kept is what they did."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agentcli.errors import ToolError
from agentcli.infra.sandbox.backends.linux import PROGRAMS, Bubblewrap
from agentcli.infra.sandbox.confinement import Bounds, Unconfined
from agentcli.infra.sandbox.dry_runs import dry_run
from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns
from agentcli.infra.sandbox.mount_points import MOUNT_POINT_MODE
from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.tools.command import Command, DryRunLimits, count_changes
from tests.conformance import escape_probes
from tests.conformance.confining import (
    NOBODY,
    Surroundings,
    clean_environment,
    confinement_for,
    folder_on_disk,
    git,
    give_to,
    picture,
    python_of,
)
from tests.conformance.test_confinement import KNOWN, MEANT
from tests.processes import command_lines
from tests.unit.sandbox.dry_running import NAMESPACES, Case, Outcome, discarding, dry_runs, run_case, tree_of

pytestmark = pytest.mark.slow  # each sets up a stand-in of a workspace, in every way there is

EVERYONE = ["root", "root in a user namespace", "user"]
TEAM = 4242  # a group of the user, besides their own
US = "root" if os.getuid() == 0 else "user"


@pytest.fixture
def base() -> Iterator[Path]:
    confinement_for(f"bubblewrap, {US}")
    with folder_on_disk() as folder:
        make_workspace(folder)
        yield folder


def make_workspace(base: Path) -> None:
    ws = base / "ws"
    ws.mkdir()
    for name, text in {"a.txt": "a\n", "b.txt": "b\n", "lib/one.py": "1\n", "lib/two.py": "2\n"}.items():
        (ws / name).parent.mkdir(exist_ok=True)
        (ws / name).write_text(text)
    (ws / "tool").write_bytes(b"\x7fELF\x00\x01")
    (ws / "tool").chmod(0o755)
    (ws / "link").symlink_to("a.txt")
    (ws / "empty").mkdir(mode=0o750)
    (ws / ".env").write_text("SECRET")
    (base / "secrets").mkdir()
    (base / "secrets/key").write_text("SECRET")


def tried(base: Path, command: str, *, who: str = US, **more: object) -> Outcome:
    """Try one command as somebody; skips where they cannot run this Python."""
    case = Case(str(base), who, command, **more)
    if who == US or who.startswith("root"):
        return asyncio.run(run_case(case))
    python = python_of(NOBODY)
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    if version.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("the Python of this user is another version")
    done = subprocess.run(
        [python, "-B", "-m", "tests.unit.sandbox.dry_running", msgspec.json.encode(case).decode()],
        env={**clean_environment(base), "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[TEAM],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Outcome, dec_hook=lambda kind, text: kind(text))


def told(outcome: Outcome) -> dict[str, tuple[str, str]]:
    return {change.name: (change.kind, change.what) for change in outcome.changes}


def assert_nothing_left(base: Path) -> None:
    left = [entry for entry in (base / "state/tries").iterdir() if {path.name for path in entry.iterdir()} != {"lock"}]
    assert left == []  # of a session that goes on there is a folder for its caches
    assert str(base) not in Path("/proc/self/mountinfo").read_text()


EVERYTHING = """
echo more >>a.txt; rm b.txt; mv lib library; ln -sfn tool link; chmod 700 tool; mkdir -p new/deep; echo x >new/deep/x
mkdir bare; rmdir empty; printf '\\0\\1' >data; chmod 600 data; mkfifo pipe; chmod 711 library; touch new/deep/x
cat library/one.py; exit 3
"""
CHANGES = {
    "a.txt": ("changed", "file"),
    "b.txt": ("deleted", "file"),
    "lib/one.py → library/one.py": ("renamed", "file"),
    "lib/two.py → library/two.py": ("renamed", "file"),
    "link": ("changed", "link"),
    "tool": ("mode", "file"),
    "new/deep/x": ("created", "file"),
    "bare": ("created", "folder"),
    "empty": ("deleted", "folder"),
    "data": ("created", "file"),
    "pipe": ("created", "pipe"),
}


MODES = "chmod 750 . lib; echo x >shut; chmod 0 shut; mkdir no; echo x >no/x; chmod 0 no; chmod 0 a.txt"
TREE = [("changed", "tree")]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("who", "command", "changes"),
    [
        *((who, EVERYTHING, CHANGES) for who in EVERYONE),
        *(
            (
                who,
                MODES,
                {
                    ".": ("mode", "folder"),
                    "a.txt": ("mode", "file"),
                    "lib": ("mode", "folder"),
                    "no/x": ("created", "file"),
                    "shut": ("created", "file"),
                },
            )
            for who in ("root", "user")
        ),
        (US, "rm -r lib; echo file >lib", TREE),
        (US, "rm a.txt; mkdir -p a.txt/deep; echo x >a.txt/deep/x", TREE),
        (US, "rm -r lib; ln -s empty lib", TREE),
    ],
)
def test_what_is_kept_is_what_the_command_does_without_a_dry_run(
    base: Path, who: str, command: str, changes: dict[str, tuple[str, str]] | list[tuple[str, str]]
) -> None:
    if command == MODES and os.getuid() != 0:
        pytest.skip("needs root, who can compare what nobody may read")
    _, uid = confinement_for(f"bubblewrap, {who}")
    give_to(uid, base)
    shutil.copytree(base / "ws", base / "twin", symlinks=True)
    give_to(uid, base / "twin")
    outcome = tried(base, command, who=who)
    script = subprocess.run(
        ["bash", "-c", command], cwd=base / "twin", user=uid, group=uid, capture_output=True, check=False
    )
    assert (outcome.exit_code, outcome.output) == (script.returncode, script.stdout.decode())
    assert (told(outcome) if isinstance(changes, dict) else list(told(outcome).values())) == changes
    assert outcome.kept.conflicts == ()
    assert tree_of(base / "ws") == tree_of(base / "twin")
    assert_nothing_left(base)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, who can give files to any group")
def test_a_file_of_another_group_keeps_it_and_the_folder_around_it_is_no_change(base: Path) -> None:
    _, uid = confinement_for("bubblewrap, user")
    give_to(uid, base)
    for path in (base / "ws", *(base / "ws").iterdir()):
        os.chown(path, uid, TEAM, follow_symlinks=False)
    (base / "ws").chmod(0o2775)
    outcome = tried(base, "sed -i s/a/b/ a.txt; echo x >new; cat lib/one.py", who="user")
    assert told(outcome) == {"a.txt": ("changed", "file"), "new": ("created", "file")}
    assert {(base / "ws" / name).stat().st_gid for name in ("a.txt", "new")} == {TEAM}


@pytest.mark.parametrize("who", EVERYONE)
def test_a_discarded_dry_run_leaves_everything_as_it_was(base: Path, who: str) -> None:
    _, uid = confinement_for(f"bubblewrap, {who}")
    give_to(uid, base)
    before = tree_of(base / "ws")
    times = {path: path.lstat().st_mtime_ns for path in (base / "ws").rglob("*")}
    outcome = tried(base, EVERYTHING, who=who, drops=True)
    assert told(outcome) == CHANGES
    assert tree_of(base / "ws") == before
    assert times == {path: path.lstat().st_mtime_ns for path in (base / "ws").rglob("*")}
    assert_nothing_left(base)


STEPS = {"a.txt": "echo more >>a.txt", "lib/one.py": "rm lib/one.py", "new/x": "mkdir new; echo x >new/x"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", [c for count in range(4) for c in itertools.combinations(STEPS, count)], ids=str)
def test_any_subset_can_be_kept(base: Path, names: tuple[str, ...]) -> None:
    shutil.copytree(base / "ws", base / "twin", symlinks=True)
    outcome = tried(base, "\n".join(STEPS.values()), keep=list(names))
    subprocess.run(["bash", "-c", "\n".join(STEPS[name] for name in names)], cwd=base / "twin", check=True)
    assert (set(told(outcome)), set(outcome.kept.names)) == (set(STEPS), set(names))
    assert tree_of(base / "ws") == tree_of(base / "twin")


OLD = [f"{number}" for number in range(40)]
EDITS = {2: [], 9: ["nine"], 12: ["12", "more"], 30: ["x", "y"], 39: ["the end"]}  # the lines that take a line's place


def edited(chosen: tuple[int, ...]) -> list[str]:
    wanted = {line for number, line in enumerate(EDITS) if number in chosen}
    return [new for number, line in enumerate(OLD) for new in (EDITS[number] if number in wanted else [line])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "chosen", [c for count in range(1, 6) for c in itertools.combinations(range(len(EDITS)), count)], ids=str
)
def test_any_subset_of_a_files_hunks_can_be_kept(base: Path, chosen: tuple[int, ...]) -> None:
    """Line ends, a BOM, the last line's missing end and other bytes are those of the file; its mode is the try's."""
    endings = {"lf": ("", "\n", "\n"), "crlf": ("\ufeff", "\r\n", "\r\n"), "open": ("", "\n", "")}
    every = tuple(range(len(EDITS)))

    def text(name: str, chosen: tuple[int, ...]) -> bytes:
        first, between, last = endings[name]
        return f"{first}{between.join(edited(chosen))}{last}".encode()

    for name in endings:
        (base / "ws" / name).write_bytes(text(name, ()))
    news = "".join(f"cat >{name} <<'EOF'\n{text(name, every).decode()}\nEOF\n" for name in endings)
    command = (
        f"{news} for name in {' '.join(endings)}; do truncate -s -1 $name; chmod 755 $name; done; echo more >>a.txt"
    )
    outcome = tried(base, command, parts={name: list(chosen) for name in endings})
    assert {change.name: change.hunks for change in outcome.changes} == {
        "a.txt": 1,
        **dict.fromkeys(endings, len(EDITS)),
    }
    assert outcome.kept.conflicts == ()
    for name in endings:
        assert (base / "ws" / name).read_bytes() == text(name, chosen)
        assert (base / "ws" / name).stat().st_mode & 0o777 == 0o755
    assert (base / "ws/a.txt").read_text() == "a\nmore\n"
    assert_nothing_left(base)


def test_what_no_hunk_shows_is_kept_whole(base: Path) -> None:
    lines = "".join(f"{line}\n" for line in OLD)
    for name in ("ends", "gone", "linked"):
        (base / "ws" / name).write_text(lines)
    command = """
        sed -i -e 's/$/\\r/' -e '2d;30d' ends; rm gone; seq 0 3 99 >new; ln -sf new linked; printf '\\0' >>a.txt
        mkdir .idea; seq 9 >.idea/x
    """
    outcome = tried(base, command, drops=True)
    assert {change.name: change.hunks for change in outcome.changes} == dict.fromkeys(
        ("ends", "gone", "new", "linked", "a.txt", ".idea/x"), 1
    )


def test_a_part_of_a_file_that_changed_meanwhile_is_a_conflict(base: Path) -> None:
    (base / "ws/a.txt").write_text("".join(f"{line}\n" for line in OLD))
    for between in ("echo mine >>a.txt", "rm a.txt", "rm a.txt; mkfifo a.txt"):
        outcome = tried(base, "sed -i '2d;30d' a.txt; echo x >>b.txt", between=between, parts={"a.txt": [1]})
        assert outcome.kept.names == ("b.txt",)
        subprocess.run(["bash", "-c", "rm -f a.txt; seq 0 39 >a.txt"], cwd=base / "ws", check=True)


def test_a_diff_is_shown_of_text_and_sizes_of_the_rest(base: Path) -> None:
    outcome = tried(base, r"echo more >>a.txt; printf '\0\1\2' >tool; rm b.txt", drops=True)
    by_name = {change.name: change for change in outcome.changes}
    assert by_name["a.txt"].diff == "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,2 @@\n a\n+more\n"
    assert by_name["b.txt"].diff.endswith("@@ -1 +0,0 @@\n-b\n")
    tool = by_name["tool"]
    assert tool.diff == ""
    assert tool.notes == ("contents not shown: 6 → 3 bytes",)


def test_a_folder_with_much_in_it_is_one_change_and_what_is_auto_executed_is_its_own(base: Path) -> None:
    make = """
        mkdir -p build/deep build/.vscode build/inner
        for i in {1..20}; do echo $i >build/deep/$i; done
        echo x >build/run; chmod 755 build/run; ln -s /etc/passwd build/way; echo '{}' >build/.vscode/tasks.json
        git init -q build/inner; chmod 555 build/deep; mkdir -m 500 other; cd other
        chmod 700 .; for i in {1..20}; do echo $i >$i; done; chmod 500 .
    """
    shutil.copytree(base / "ws", base / "twin", symlinks=True)
    outcome = tried(base, make)
    subprocess.run(["bash", "-c", make], cwd=base / "twin", check=True)
    first, second, *others = outcome.changes
    assert {first.name, second.name} == {"build/.vscode/tasks.json", "build/inner/.git"}
    assert first.is_auto_executed
    assert second.is_auto_executed
    assert [(c.name, c.kind, c.what, c.files, c.is_auto_executed) for c in others] == [
        ("build", "created", "folder", 22, False),
        ("other", "created", "folder", 20, False),
    ]
    assert others[0].notes == ("1 executable: run", "1 link: way → /etc/passwd")
    assert outcome.kept.conflicts == ()
    assert without_git(tree_of(base / "ws")) == without_git(tree_of(base / "twin"))
    assert_nothing_left(base)


def without_git(tree: dict[str, tuple[str, int, bytes | str]]) -> dict[str, tuple[str, int, bytes | str]]:
    return {path: at for path, at in tree.items() if "inner" not in path}


def test_a_folder_that_went_is_one_change(base: Path) -> None:
    for number in range(20):
        (base / f"ws/lib/{number}").touch()
    outcome = tried(base, "rm -r lib; echo x >>a.txt")
    assert told(outcome) == {"lib": ("deleted", "folder"), "a.txt": ("changed", "file")}
    assert (outcome.changes[0].files, outcome.changes[0].permanent_loss) == (22, "tree")
    assert not (base / "ws/lib").exists()


def test_a_removed_folder_that_held_only_empty_folders_goes_with_them(base: Path) -> None:
    (base / "ws/outer/inner").mkdir(parents=True)
    outcome = tried(base, "rm -r outer")
    assert told(outcome) == {"outer/inner": ("deleted", "folder")}
    assert not (base / "ws/outer").exists()


async def test_caches_stay_out_of_the_workspace_and_are_there_for_the_next_dry_run(base: Path) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55"
    before = tree_of(base / "ws")
    runs = dry_runs(base, US, cache=base / "cache")
    make = f"""
        mkdir lib/__pycache__ out; echo 1 >lib/__pycache__/one.pyc; echo "{tag}" >out/CACHEDIR.TAG; echo o >out/o
        echo 1 >.coverage; echo 1 >{base}/cache/x
    """
    read = f"cat lib/__pycache__/* out/o .coverage {base}/cache/x"
    for script in (make, f"{read}; echo 2 >lib/__pycache__/two.pyc; rm .coverage", f"{read}; ls -A . lib"):
        async with discarding(await runs.run(Command(script, base / "ws", timeout_s=20))) as tried:
            said = tried.result.output
            assert tried.changes == ()
    assert said.startswith("1\n2\no\ncat: .coverage: No such file or directory\n1\n"), said
    shutil.rmtree(base / "ws/lib")
    async with discarding(await runs.run(Command("ls", base / "ws", timeout_s=20))) as tried:
        assert "lib" not in tried.result.output
    runs.close()
    assert tree_of(base / "ws") == {path: at for path, at in before.items() if not path.startswith("lib")}
    assert list((base / "cache").iterdir()) == []
    assert list((base / "state/tries").iterdir()) == []


async def test_a_command_ends_as_usual_where_nobody_can_look_what_it_takes(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(dry_run, "_find_excess", fail)
    runs = dry_runs(base, US)
    async with discarding(await runs.run(Command("sleep 0.5; echo done", base / "ws", timeout_s=20))) as it:
        assert it.result.output == "done\n"
    runs.close()


def test_the_folder_of_benchmarks_is_a_change_only_with_something_in_it(base: Path) -> None:
    assert tried(base, "mkdir .benchmarks").changes == []
    assert told(tried(base, "mkdir .benchmarks; echo 1 >.benchmarks/one.json")) == {
        ".benchmarks/one.json": ("created", "file")
    }
    assert (base / "ws/.benchmarks/one.json").read_text() == "1\n"
    assert told(tried(base, "mkdir other")) == {"other": ("created", "folder")}


async def test_a_new_folder_around_a_cache_is_not_there_for_the_next_try(base: Path) -> None:
    runs = dry_runs(base, US)
    make = "mkdir -p lib/__pycache__ new/__pycache__; echo 1 | tee lib/__pycache__/a.pyc >new/__pycache__/b.pyc"
    async with discarding(await runs.run(Command(make, base / "ws", timeout_s=20))):
        pass
    async with discarding(await runs.run(Command("cat lib/__pycache__/*; mkdir new", base / "ws", timeout_s=20))) as it:
        assert it.result.output == "1\n"
    runs.close()


def test_a_folder_of_files_is_not_a_cache_because_it_says_so_now(base: Path) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55"
    outcome = tried(base, f"echo '{tag}' >lib/CACHEDIR.TAG; echo more >>lib/one.py")
    assert set(told(outcome)) == {"lib/CACHEDIR.TAG", "lib/one.py"}


def test_a_folder_in_place_of_a_tag_leaves_no_descriptor_open(base: Path) -> None:
    gc.collect()  # else what earlier tests left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    assert set(told(tried(base, "mkdir -p out/CACHEDIR.TAG; echo 1 >out/new"))) >= {"out/new"}
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("command", "name"),
    [("touch a.txt", ""), ("echo a >a.txt", ""), ("rm a.txt; echo a >a.txt", ""), ("rm -r lib; mkdir lib", "lib/")],
)
def test_files_with_the_same_contents_at_the_end_are_not_changes(base: Path, command: str, name: str) -> None:
    outcome = tried(base, command, drops=True)
    assert {changed[: len(name)] for changed in told(outcome)} == ({name} if name else set())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "between", "name"),
    [
        ("echo ours >>a.txt", "echo theirs >>a.txt", "a.txt"),
        ("echo ours >>a.txt", "rm a.txt", "a.txt"),
        ("echo ours >new", "echo theirs >new", "new"),
        ("rm a.txt", "echo theirs >>a.txt", "a.txt"),
        ("chmod 700 a.txt", "chmod 755 a.txt", "a.txt"),
        ("rm -r empty", "touch empty/x", "empty"),
        ("rm -r lib; echo ours >lib", "touch lib/three.py", "lib"),
        ("rm a.txt; mkdir a.txt; touch a.txt/x", "echo theirs >>a.txt", "a.txt"),
        ("ln -sfn b.txt link", "ln -sfn tool link", "link"),
        ("echo ours >lib/new.py", "mv lib library; ln -s /etc lib", "lib/new.py"),
    ],
)
def test_changes_of_others_are_conflicts_and_stay(base: Path, command: str, between: str, name: str) -> None:
    shutil.copytree(base / "ws", base / "twin", symlinks=True)
    subprocess.run(["bash", "-c", between], cwd=base / "twin", check=True)
    outcome = tried(base, f"{command}\necho fine >fine", between=between)
    (base / "twin/fine").write_text("fine\n")
    assert [conflict.name for conflict in outcome.kept.conflicts] == [name]
    assert outcome.kept.names == ("fine",)
    assert tree_of(base / "ws") == tree_of(base / "twin")


async def test_a_change_from_outside_while_the_command_runs_is_a_conflict(base: Path) -> None:
    runs = dry_runs(base, US)
    script = "echo ours >>a.txt; rm b.txt; echo ready; sleep 0.5"
    heard: list[str] = []

    def on_output(text: str) -> None:
        if "ready" in text:
            heard.append(text)
            for name in ("a.txt", "b.txt"):
                (base / "ws" / name).write_text("theirs\n")

    tried = await runs.run(Command(script, base / "ws", timeout_s=20), on_output=on_output)
    kept = await tried.apply()
    assert heard
    assert {conflict.name for conflict in kept.conflicts} == {"a.txt", "b.txt"}
    assert (base / "ws/a.txt").read_text() == (base / "ws/b.txt").read_text() == "theirs\n"


def test_a_session_open_in_another_program_is_a_conflict(base: Path) -> None:
    database = sqlite3.connect(base / "ws/data.db")
    database.execute("create table t (x)")
    database.commit()
    database.close()
    script = "printf x >>data.db; echo more >>a.txt; echo more >>b.txt; rm tool"
    with (base / "ws/a.txt").open("a"), (base / "ws/b.txt").open("r"):
        outcome = tried(base, script)
    assert {conflict.name: conflict.why.partition(",")[0].partition(";")[0] for conflict in outcome.kept.conflicts} == {
        "a.txt": "another program has it open for writing",
        "data.db": "it is a database",
    }
    assert set(outcome.kept.names) == {"b.txt", "tool"}
    assert sqlite3.connect(base / "ws/data.db").execute("select x from t").fetchall() == []


def repository(base: Path) -> Path:
    ws = base / "ws"
    git(ws, "init", "-q", "-b", "main")
    git(ws, "add", "a.txt", "lib")
    git(ws, "commit", "-q", "-m", "first")
    return ws


def test_a_commit_is_one_change_and_git_says_what_became_of_the_repository(base: Path) -> None:
    ws = repository(base)
    git(ws, "branch", "x/y")
    first = git(ws, "rev-parse", "--short=7", "HEAD").strip()
    command = "echo more >>a.txt; git commit -qam second; git add b.txt; git update-ref -d refs/heads/x/y"
    [change] = tried(base, f"{command}; git update-ref refs/heads/x HEAD; git gc -q").changes
    assert (change.name, change.kind, change.what) == (".git", "changed", "repository")
    assert (change.permanent_loss, change.notes) == ("work", ("loses entries of the log of refs/heads/x/y",))
    head = git(ws, "rev-parse", "--short=7", "x").strip()
    for said in (
        f"main: {first} → {head}",
        f"  + {head} second",
        "x: none → ",
        "x/y: ",
        "staged: A\tb.txt",
        "a.txt | 1 +",
    ):
        assert said in change.diff
    assert "first" not in change.diff, "a ref had this commit before"
    assert (ws / "a.txt").read_text() == "a\nmore\n"
    assert git(ws, "log", "--format=%s", "x").split() == ["second", "first"]
    git(ws, "fsck", "--strict")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("git reset -q --hard HEAD~", "loses commit "),
        ("git commit -q --allow-empty --amend -m other", "loses commit "),
        ("git branch -qD side", "loses commit "),
        ("git stash drop -q", "loses stash stash@{0}"),
        ("echo other >pages", "loses its uncommitted contents"),
        ("git checkout -q -- lib/one.py", "loses its uncommitted contents"),
        ("git stash -q -u -- b.txt", "b.txt: loses its uncommitted contents"),
        ("sed s/work/other/ long >longer; rm long", "loses its uncommitted contents"),
        ("git add tool; git clean -fdqx lib", "lib/new.py: loses its uncommitted contents"),
    ],
)
def test_what_a_repository_loses_is_reported(base: Path, command: str, note: str) -> None:
    ws = repository(base)
    (ws / "lib/two.py").write_text("stashed\n")
    git(ws, "stash", "-q")
    git(ws, "checkout", "-q", "-b", "side")
    git(ws, "commit", "-q", "--allow-empty", "-m", "aside")
    git(ws, "checkout", "-q", "main")
    git(ws, "commit", "-q", "--allow-empty", "-m", "second")
    (ws / "lib/one.py").write_text("work\n")
    (ws / "lib/new.py").write_text("work\n")
    (ws / "long").write_text("work\n" + "more\n" * 9)
    (ws / "pages").write_text("work\f\nmore\f\n")  # a form feed ends no line
    before = tree_of(ws)
    [change] = tried(base, command, drops=True).changes
    assert change.permanent_loss == "work"
    assert any(said.startswith(note) for said in change.notes), change.notes
    assert "stash" not in change.diff + "".join(change.notes) or "git stash store" in "".join(change.notes)
    assert tree_of(ws) == before


def test_each_file_that_git_changes_is_shown_once_and_one_that_stays_is_named(base: Path) -> None:
    ws = repository(base)
    (ws / "a.txt").write_text("    x\n\n")  # git and agentcli show this change by different lines
    git(ws, "commit", "-q", "-m", "second", "a.txt")
    (ws / "a.txt").write_text("}\n\n    x\n}\n")
    (ws / ".vscode").mkdir()
    (ws / ".vscode/tasks.json").write_text("{}\n")
    git(ws, "add", "a.txt", ".vscode")
    git(ws, "commit", "-q", "-m", "third")
    [change] = tried(base, "git reset -q --hard HEAD~1", drops=True).changes
    assert change.diff.count("+++ b/a.txt\n") == 1
    assert dict(change.worktree) == {"edited": 1}, "the sandbox keeps .vscode as it is"
    assert ".vscode/tasks.json | 1 -" in change.diff


def test_what_git_says_where_no_repository_is_any_more_is_not_a_change(base: Path) -> None:
    repository(base)
    [change] = tried(base, "rm -rf .git", drops=True).changes
    assert "main: " in change.diff
    assert "fatal: " not in change.diff


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("echo more >>lib/one.py; echo more >>b.txt; git add lib; git commit -qm second", [(".git", "", ())]),
        ("touch -d @1 lib/one.py; git status --short; git diff; git log -1; git stash list", []),
        ("git stash; git stash pop", []),
    ],
)
def test_nothing_is_marked_when_no_work_is_lost(
    base: Path, command: str, changes: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    ws = repository(base)
    git(ws, "config", "user.email", "a@example.org")
    (ws / "lib/one.py").write_text("work\n")
    found = tried(base, command, drops=True).changes
    assert [(change.name, change.permanent_loss, change.notes) for change in found] == changes


def test_a_linked_worktrees_repository_is_held_back_as_well(base: Path) -> None:
    main = base / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "first")
    shutil.rmtree(base / "ws")
    git(main, "worktree", "add", "-q", str(base / "ws"))
    before = tree_of(main)
    command = "git commit -q --allow-empty -m second"
    assert tried(base, command, drops=True).exit_code == 0
    assert tree_of(main) == before
    outcome = tried(base, command)
    assert told(outcome) == {f"{main}/.git": ("changed", "repository")}
    assert git(base / "ws", "log", "--format=%s").split() == ["second", "first"]


async def test_granted_folders_are_held_back_and_granted_files_cannot_be_written(base: Path) -> None:
    granted, file = base / "granted", base / "notes"
    granted.mkdir()
    file.write_text("notes")
    runs = dry_runs(base, US, writable=(granted, file), cache=base / "cache")
    script = f"echo x >{granted}/x; echo x >>{file}; echo x >{base}/cache/x"
    async with discarding(await runs.run(Command(script, base / "ws", timeout_s=20))) as tried:
        assert [change.name for change in tried.changes] == [f"{granted}/x"], tried.result
        assert not (granted / "x").exists()
        await tried.apply()
    assert (granted / "x").read_text() == "x\n"
    assert file.read_text() == "notes"
    assert list((base / "cache").iterdir()) == []


def test_a_dry_run_is_confined_as_any_command_is(base: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    script = f"""
        cat .env {base}/secrets/key; grep -rs SECRET {base}; mkdir .vscode/x; echo x >.vscode/x; rm -f .env; mv .env y
        (echo x >/dev/tcp/127.0.0.1/{server.getsockname()[1]}) 2>&1 && echo connected
        echo x >{base}/outside; unshare -U true && echo namespace; ls {base}/state/tries/* {base}/state/tries
        pwd; true
    """
    outcome = tried(base, script)
    server.close()
    assert "SECRET" not in outcome.output
    assert "connected" not in outcome.output
    assert "namespace" not in outcome.output
    assert "try-" not in outcome.output
    assert outcome.output.endswith(f"{base}/ws\n")
    assert told(outcome) == {}
    assert not (base / "outside").exists()
    assert (base / "ws/.env").read_text() == "SECRET"
    assert not (base / "ws/.vscode").exists()


def test_a_dry_run_that_nobody_allowed_reads_the_workspace_and_the_system_alone(base: Path) -> None:
    home, other = base / "home", Path("/agentcli-test-data")
    for path in (home / "notes/diary", home / ".cargo/bin/tool", home / ".cargo/credentials", home / "bin/mine"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"SECRET {path.name}\n")
    if os.getuid() == 0:
        other.mkdir(exist_ok=True)
        (other / ".env").write_text("SECRET other\n")

    async def scenario() -> None:
        path = f"{home}/bin:/usr/bin:/bin"
        runs = dry_runs(base, US, home=home, search_path=path, masked=(home / ".cargo/credentials",))
        script = f"cat {home}/notes/diary {home}/.cargo/* {home}/.cargo/bin/* {home}/bin/* {other}/.env; cat a.txt"
        command = Command(script, base / "ws", timeout_s=20, dry_run="narrow")
        async with discarding(await runs.run(command)) as tried:
            found = [line.removeprefix("SECRET ") for line in tried.result.output.splitlines() if "SECRET" in line]
            assert (found, tried.result.output[-2:]) == (["tool", "mine"], "a\n")
        runs.close()

    try:
        asyncio.run(scenario())
    finally:
        shutil.rmtree(other, ignore_errors=True)


async def test_processes_that_a_dry_run_leaves_running_are_ended(base: Path) -> None:
    mark = f"{time.time():.6f}"[5:]
    runs = dry_runs(base, US)
    slow = await runs.run(Command(f"echo x >x; setsid -f sleep 6{mark}; sleep 60", base / "ws", timeout_s=0.5))
    assert slow.result.timed_out
    assert [change.name for change in slow.changes] == ["x"]
    await slow.discard()
    left = await runs.run(Command(f"echo out; setsid -f sleep 6{mark}", base / "ws", timeout_s=20))
    assert (left.result.exit_code, left.result.output) == (0, "out\n")
    await left.discard()
    call = asyncio.create_task(runs.run(Command(f"sleep 6{mark}", base / "ws", timeout_s=20)))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not any(f"6{mark}" in line for line in command_lines())
    assert_nothing_left(base)


@pytest.mark.slow
async def test_a_server_is_ended_when_it_waits(base: Path) -> None:
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('up', flush=True); s.accept()"
    runs = dry_runs(base, US)
    script = f'echo x >x; {python_of(os.getuid())} -c "{serve}"'
    async with discarding(await runs.run(Command(script, base / "ws", timeout_s=30))) as tried:
        assert (tried.result.output, tried.result.exit_code, tried.result.job) == ("up\n", None, None)
        assert "listens on" in tried.result.stall
        assert "was ended" in tried.result.stall
        assert [change.name for change in tried.changes] == ["x"]
    assert_nothing_left(base)


async def test_what_changes_or_takes_too_much_is_ended_and_dropped(base: Path) -> None:
    before = tree_of(base / "ws")
    runs = dry_runs(base, US, limits=DryRunLimits(max_entries=20))
    many = Command("for i in {1..30}; do echo $i >$i; done; echo said; exit 3", base / "ws", timeout_s=20)
    async with discarding(await runs.run(many)) as tried:
        assert (tried.result.output, tried.result.exit_code, tried.changes) == ("said\n", 3, ())
        assert "more than 20 files" in tried.exceeded_limit
    small = dry_runs(base, US, limits=DryRunLimits(max_bytes=1_000_000))
    much = Command("head -c 1100000 /dev/zero >zero", base / "ws", timeout_s=20)
    async with discarding(await small.run(much)) as tried:
        assert "1 MB" in tried.exceeded_limit
    endless = Command("echo said; cat /dev/zero >zero", base / "ws", timeout_s=60)
    async with discarding(await small.run(endless)) as tried:
        assert (tried.result.output, tried.exceeded_limit) == ("said\n", "it wrote more than 1 MB")
    assert tree_of(base / "ws") == before
    assert_nothing_left(base)


@pytest.mark.full
def test_folders_nested_deeply_are_dropped_like_others(base: Path) -> None:
    outcome = tried(base, "mkdir -p $(printf 'd/%.0s' {1..1300})", drops=True)
    assert [change.kind for change in outcome.changes] == ["created"]
    assert_nothing_left(base)


async def test_a_dry_run_ends_once(base: Path) -> None:
    runs = dry_runs(base, US)
    tried = await runs.run(Command("echo x >x", base / "ws", timeout_s=20))
    with pytest.raises(ToolError, match="no change 'y'; there is x"):
        await tried.apply(["y"])
    assert (await tried.apply(["x"])).names == ("x",)
    await tried.discard()
    with pytest.raises(ToolError, match="over"):
        await tried.apply()
    assert (base / "ws/x").read_text() == "x\n"


@pytest.mark.parametrize(
    ("profile", "root", "is_confined", "why"),
    [
        ("workspace-write", "ws", False, "needs namespaces.*Nothing works here"),
        ("read-only", "ws", True, "read-only"),
        ("danger-full-access", "ws", True, "not confined"),
        ("workspace-write", "", True, "agentcli's own data"),
    ],
)
async def test_a_dry_run_without_confinement_is_refused(
    base: Path, profile: str, root: str, *, is_confined: bool, why: str
) -> None:
    confinement = confinement_for(f"bubblewrap, {US}")[0] if is_confined else Unconfined("Nothing works here.")
    bounds = Bounds(profile=profile, roots=(base / root,), home=base)
    runs = DryRuns(
        lambda: Shell({}, base / "output"), lambda: confinement, lambda grants: bounds, folder=base / "state/tries"
    )
    with pytest.raises(ToolError, match=why):
        await runs.run(Command("echo x >x", base / root, timeout_s=20))
    assert not (base / root / "x").exists()


def test_no_escape_probe_gets_out_of_a_dry_run(base: Path) -> None:
    """What a command may do at all it may do in a try, and nothing of it is real."""
    # The shell's own pipe is a descriptor; of a hidden folder what was granted in it is all there is.
    meant = MEANT | KNOWN | {"use_inherited_descriptor", "list_masked_folder"}
    # These reach the overlay alone, and are marked in what the person is asked about.
    meant |= {"write_git_config", "write_config_of_nested_repository", "make_protected_folder", "make_protected_file"}
    _, uid = confinement_for(f"bubblewrap, {US}")
    (base / "probed").mkdir()
    at = Surroundings(base / "probed", uid)
    try:
        for name in escape_probes.PROBES:
            (at.outside / name).write_text("original")
        os.link(at.outside / "write_through_existing_hard_link", at.ws / "existing_hard_link")
        script = at.ws / "escape_probes.py"
        script.write_bytes(Path(escape_probes.__file__).read_bytes())
        before = picture(at.outside), tree_of(at.ws)

        async def scenario() -> dict[str, str]:
            shell = Shell(clean_environment(base), base / "state/output")
            program = next(program for program in PROGRAMS if program.is_file())
            confinement = Bubblewrap(program, NAMESPACES[US], hidden=base / "hidden")
            folder = base / "state/tries"
            python = python_of(uid)
            where = str(Path(python).parent)  # else a Python in a home is hidden like the rest of it
            runs = DryRuns(
                lambda: shell, lambda: confinement, lambda grants: at.bounds, folder=folder, search_path=where
            )
            argv = [str(python), "-I", "-S", str(script), json.dumps(at.listen())]
            command = Command(shlex.join(argv), at.ws, timeout_s=60, dry_run="narrow", max_bytes=200_000)
            async with discarding(await runs.run(command)) as tried:
                outcomes: dict[str, str] = json.loads(tried.result.output)
                marked = {change.name for change in tried.changes if change.is_auto_executed}
                assert {".git", "vendor/lib/.git", ".agentcli/hooks", ".mcp.json"} <= marked
            runs.close()
            await shell.aclose()
            return outcomes

        outcomes = asyncio.run(scenario())
        assert len(outcomes) == len(escape_probes.PROBES)
        assert {probe for probe, outcome in outcomes.items() if outcome == "open"} <= meant - {"read_home"}
        assert (picture(at.outside), tree_of(at.ws)) == before
        assert at.packets == []
        assert at.victim.poll() is None
    finally:
        at.close()
    assert_nothing_left(base)


@pytest.mark.parametrize(
    ("command", "is_auto_executed", "says"),
    [
        ("git branch -m main trunk", False, "config: + branch.trunk.remote = 'origin'"),
        ("git remote add other /srv/other", False, "config: + remote.other.url = '/srv/other'"),
        ("git config user.name Me; git branch -q -u origin/main", False, "config: + user.name = 'Me'"),
        ("git config core.hooksPath there", True, "config: + core.hookspath = 'there'"),
        ("git config alias.st '!touch x'", True, "config: + alias.st = '!touch x'"),
        ("git config core.fsmonitor ./x; git config user.name Me", True, "config: + core.fsmonitor = './x'"),
        ("git remote set-url origin https://example.org/", True, "config: - remote.origin.url"),
        ("git remote add other 'ext::sh -c true'", True, "config: + remote.other.url"),
        ("echo '[' >.git/config", True, "config: - core.bare = 'false'"),
        ("printf '%1000001s\\n[core]\\nfsmonitor = x\\n' '' >>.git/config", True, "config: - core.bare = 'false'"),
        ("rm .git/config", True, "config: - core.bare = 'false'"),
    ],
)
def test_gits_own_settings_change_and_those_that_run_something_are_marked(
    base: Path, command: str, is_auto_executed: bool, says: str
) -> None:
    ws = repository(base)
    git(ws, "remote", "add", "origin", str(ws))
    git(ws, "fetch", "-q")
    git(ws, "branch", "-q", "-u", "origin/main")
    outcome = tried(base, command, drops=is_auto_executed)
    [change] = outcome.changes
    assert (change.what, change.is_auto_executed) == ("repository", is_auto_executed)
    assert says in change.diff
    assert not outcome.output, "git has nothing to complain about"


def test_names_that_are_not_there_are_not_seen_and_are_marked_once_made(base: Path) -> None:
    repository(base)
    (base / "ws/.vscode").mkdir()
    (base / "ws/.vscode").chmod(MOUNT_POINT_MODE)  # as while a job runs
    outcome = tried(
        base,
        "ls -A | grep -v git$; git clean -fdq -e .env && echo clean; mkdir .vscode; echo {} >.vscode/tasks.json;"
        "echo {} >.mcp.json",
        drops=True,
    )
    assert outcome.output.split() == [".env", "a.txt", "b.txt", "empty", "lib", "link", "tool", "clean"]
    assert {".vscode/tasks.json", ".mcp.json"} <= {change.name for change in outcome.changes if change.is_auto_executed}
    assert tried(base, "true").changes == []
    assert (base / "ws/.vscode").is_dir()


@pytest.mark.parametrize(
    ("command", "counted"),
    [
        ("git reset -q --hard HEAD~2", "1 file edited, 1 deleted, moves main back by 2 commits"),
        ("git commit -qam second --allow-empty", "moves main forward by 1 commit"),
        ("git checkout -qb side", "switches to side"),
        ("git branch side", "creates side"),
        ("rm -r lib many; echo x >made; mkdir new", "1 file created, 14 deleted, folder created"),
    ],
)
def test_changes_are_counted_by_file_and_git_s_own_files_are_not(base: Path, command: str, counted: str) -> None:
    ws = repository(base)
    for name in ("a.txt", "added"):
        (ws / name).write_text("next\n")
        git(ws, "add", name)
        git(ws, "commit", "-q", "-m", name)
    (ws / "many").mkdir()
    for number in range(12):
        (ws / f"many/{number}").touch()
    changes = tried(base, command, drops=True).changes
    assert count_changes(changes) == counted
    assert "".join(f"{change.diff}{change.notes}" for change in changes).count("next\n") <= 2, "each diff is shown once"


def test_a_renamed_file_is_one_change_with_the_lines_that_differ(base: Path) -> None:
    ws = base / "ws"
    (ws / "long.txt").write_text("".join(f"line {number}\n" for number in range(100)))
    (ws / "other.txt").write_text("nothing\nlike\nit\n")
    command = "mv a.txt c.txt; sed 's/^line 7$/seven/' long.txt >longer.txt; rm long.txt other.txt; echo x >new"
    outcome = tried(base, command, keep=["a.txt → c.txt", "long.txt → longer.txt"])
    changes = {change.name: change for change in outcome.changes}
    assert count_changes(outcome.changes) == "2 files renamed, 1 created, 1 deleted"
    assert (changes["a.txt → c.txt"].diff, changes["a.txt → c.txt"].notes) == ("", ("100 %",))
    edited = changes["long.txt → longer.txt"]
    assert (edited.notes, edited.hunks) == (("99 %",), 1)
    assert [line for line in edited.diff.splitlines() if line[0] in "+-"][2:] == ["-line 7", "+seven"]
    assert not (ws / "a.txt").exists()
    assert (ws / "c.txt").read_text() == "a\n"
    assert not (ws / "long.txt").exists()
    assert (ws / "other.txt").exists()
