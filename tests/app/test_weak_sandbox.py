"""Where only Landlock confines commands: what it cannot keep is reverted, asked about, and said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentcli.infra.sandbox.processes.process_tree import processes_below
from tests.app.running import Place, Ran, Running, call, wait_until
from tests.app.terminal import Open
from tests.conformance.confining import NOBODY, confinement_for, folder_on_disk, give_to

pytestmark = pytest.mark.slow  # each test starts the program

CANARY = "canary-7f3b2c91d8e64a05"
KIND = {"AGENTCLI_SANDBOX_KIND": "landlock"}
AUTO = ("--permission-mode", "auto")
STREAM = (*AUTO, "--input-format", "stream-json", "--output-format", "stream-json")
REVERTED = "[the sandbox reverted changes to files that other programs run or obey"


def skip_without_landlock() -> None:
    confinement_for("landlock, root" if os.getuid() == 0 else "landlock, user")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    skip_without_landlock()
    made = Place(tmp_path)
    made.environment |= KIND
    subprocess.run(["git", "init", "-q", str(made.folder)], check=True)
    (made.folder / "a.py").write_text("print(1)\n")
    return made


@pytest.fixture
def no_roots_place(place: Place) -> Iterator[Place]:
    """Whoever runs the program here is kept out by modes, as root never is."""
    if os.getuid() != 0:
        yield place
        return
    try:
        subprocess.run([sys.executable, "-c", "import msgspec"], user=NOBODY, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this Python lies where only root comes")
    with folder_on_disk() as base:
        made = Place(base)
        made.environment |= KIND | {"HOME": str(base)}
        shutil.copytree(place.folder, made.folder, dirs_exist_ok=True)
        give_to(NOBODY, base)
        made.user = NOBODY
        yield made


def git_files(place: Place) -> dict[Path, tuple[int, bytes]]:
    files = (path for path in (place.folder / ".git").rglob("*") if path.is_file())
    return {path: (path.stat().st_mode, path.read_bytes()) for path in files}


def without_moved(place: Place) -> dict[Path, tuple[int, bytes]]:
    return {path: kept for path, kept in git_files(place).items() if path.parent.name != "moved"}


def scripted(place: Place, *commands: str) -> list[dict[str, object]]:
    """Calls of these commands, which are in scripts, whose text nobody judges; `&` at the end: in the background."""
    calls = []
    for number, command in enumerate(commands):
        (place.folder / f"{number}.sh").write_text(command.removesuffix("&"))
        calls.append(call("bash", command=f"sh {number}.sh", background=command.endswith("&")))
    return calls


def results_of(ran: Ran) -> list[str]:
    blocks = [block for line in ran.of("user") for block in line["message"]["content"]]
    return [block.get("content", "") for block in blocks if block["type"] == "tool_result"]


def run_in(place: Place, *commands: str, mode: str = "auto") -> list[str]:
    """What the model is told of each command."""
    script = place.script({"tool_calls": scripted(place, *commands)}, {"text": "."})
    return results_of(place.run("-m", script, "-p", "go", "--permission-mode", mode, "--output-format", "stream-json"))


def in_turn(place: Place, *commands: str) -> str:
    """A model that runs one command after the other."""
    return place.script(*({"tool_calls": [each]} for each in scripted(place, *commands)), {"text": "{{last_result}}"})


def kill(running: Running, *, with_keeper: bool) -> None:
    below = [each.pid for each in processes_below(running.pid)] if with_keeper else ()
    for pid in (running.pid, *below):
        with suppress(ProcessLookupError):  # ended by the one before
            os.kill(pid, signal.SIGKILL)
    running.left()


def sandbox_row(place: Place) -> str:
    (row,) = [line for line in place.run("doctor").out.splitlines() if " sandbox " in line]
    return row


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["auto", "bypassPermissions"])
@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", ".git/hooks/pre-commit"),
        ("git config core.hooksPath evil", ".git/config"),
        ("git remote add origin https://example.org/x.git", ".git/config"),
        ("git config --unset core.bare; printf '[core]\\n\\tfsmonitor = evil\\n' >> .git/config", ".git/config"),
        ("rm -rf .git/hooks && ln -s /tmp .git/hooks", ".git/hooks"),
        ("mv .git .git2; mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit", ".git"),
        ("mv .git/config c; mkdir .git/config", ".git/config"),
        ("chmod 700 .git/hooks/*; true", ".git/hooks"),
        ("echo ../.. > .git/commondir", ".git/commondir"),
        ("touch .git/commondir", ".git/commondir"),  # git would end at an empty one
        ("mkdir .vscode; echo {} > .vscode/tasks.json", ".vscode"),
        ("ln -s /etc .husky", ".husky"),
        # The name is the id of an empty file.
        ("id=$(git hash-object /dev/null); mkdir $id; echo {} > $id/tasks.json; ln -s $id .vscode", ".vscode"),
        ("sh -c 'echo evil > .git/hooks/post-checkout' & wait", ".git/hooks/post-checkout"),
    ],
)
def test_changes_to_auto_executed_files_are_reverted_and_reported(
    place: Place, mode: str, command: str, named: str
) -> None:
    before = git_files(place)
    (told,) = run_in(place, command, mode=mode)
    assert REVERTED in told
    assert str(place.folder / named) in told
    assert git_files(place) == before
    assert not any(os.path.lexists(place.folder / name) for name in (".vscode", ".husky"))


@pytest.mark.parametrize(
    "command",
    [
        "echo evil > .git/hooks/pre-commit; chmod 0 .git",
        "echo evil > .git/hooks/pre-commit; chmod 0 .git/hooks",
        "echo evil > .git/config; chmod 0 .git/config .git/hooks .git",
        "echo evil > .git/hooks/pre-commit; chmod 0 .git/hooks .git/config; chmod 0 .git .",
        "echo evil > sub/.git/hooks/pre-commit; chmod 100 sub",
        "mv sub sub2; echo evil > sub2/.git/hooks/pre-commit; chmod 0 sub2",
        "mkdir .vscode; echo x > .vscode/tasks.json; chmod 0 .vscode",
        "mkdir -p {aside}; chmod 0 {aside} {aside}/..; echo evil > .git/hooks/pre-commit",
    ],
)
def test_protected_files_are_reverted_in_every_mode(no_roots_place: Place, command: str) -> None:
    """Nor is what the next command finds there taken for what was before."""
    place = no_roots_place
    subprocess.run(["git", "init", "-q", str(place.folder / "sub")], check=True)
    give_to(place.user or os.getuid(), place.folder / "sub")
    before = git_files(place)
    unlock = "chmod -R u+rwX . 2>/dev/null; chmod u+rwX .git sub sub2 2>/dev/null; true"
    told = run_in(place, command.format(aside=place.home / "state/put_aside"), unlock)
    assert REVERTED in told[0]
    assert "could not be reverted" not in "".join(told)
    assert git_files(place) == before
    assert not (place.folder / ".vscode").exists()
    for name in ("sub", "sub2"):
        assert not (place.folder / name / ".git/hooks/pre-commit").exists()


def test_failed_reverts_are_reported_and_retried(place: Place) -> None:
    """Before the next command, and when agentcli starts again."""
    hooks = place.folder / ".git/hooks"
    before = git_files(place)
    first = scripted(place, "echo evil > .git/hooks/pre-commit; touch begun; until test -e go; do :; done")
    replies = ({"tool_calls": first}, {"text": "."}, {"tool_calls": [call("bash", command="touch x")]}, {"text": "."})
    with place.start("-m", place.script(*replies), *STREAM, stdin=True) as running:
        running.say("go")
        wait_until((place.folder / "begun").exists, "the command")
        if subprocess.run(["chattr", "+i", str(hooks)], check=False, capture_output=True).returncode != 0:
            pytest.skip("needs folders that nobody can change")
        try:
            (place.folder / "go").touch()
            running.wait_for_type("result")
            running.say("again")
            told = results_of(running.ended())
        finally:
            subprocess.run(["chattr", "-i", str(hooks)], check=True)
    assert len(told) == 2
    for each in told:
        assert f"could not be reverted: {hooks} (Operation not permitted)" in each
        assert REVERTED not in each
    (hooks / "pre-push").write_text("theirs")
    assert f"{hooks}/pre-commit (what stood there is in " in run_in(place, "true")[0]
    assert git_files(place) == before


@pytest.mark.full
@pytest.mark.parametrize(
    "commands",
    [
        ("echo evil > .git/hooks/pre-push&", "sleep 1"),
        # With a link for its hooks more of a repository is protected, which the second command brings in.
        (
            "mv .git/hooks .git/moved; ln -s moved .git/hooks; echo evil > .git/config; touch begun; sleep 2&",
            *("until test -e begun; do sleep 0.1; done", "touch x", "sleep 2"),
        ),
        ("echo evil > .git/hooks/pre-commit; sleep 1&", "sleep 0.5", "sleep 2"),
    ],
)
def test_commands_that_overlap_are_compared_with_what_was_before_all_of_them(
    place: Place, commands: tuple[str, ...]
) -> None:
    before = git_files(place)
    place.run("-m", in_turn(place, *commands), "-p", "go", *AUTO)
    assert without_moved(place) == before


@pytest.mark.full
def test_a_job_that_changed_something_says_so_in_the_list(place: Place) -> None:
    start = {"tool_calls": scripted(place, "echo evil > .git/hooks/pre-push&")}
    wait = {"tool_calls": [call("bash", command="sleep 1"), call("jobs", action="list")]}
    ran = place.run("-m", place.script(start, wait, {"text": "{{last_result}}"}), "-p", "go", *AUTO)
    assert REVERTED[1:] in ran.out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("with_keeper", [False, True])
@pytest.mark.parametrize(
    "commands",
    [
        ("echo evil > .git/hooks/pre-commit; git config core.fsmonitor evil; mkdir .vscode",),
        ("rm -rf .git/hooks && ln -s /tmp .git/hooks",),
        ("mv .git .git2; mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit",),
        ("mv .git sub; mkdir .git; echo evil > .git/config",),
        ("chmod 700 .git/hooks/*",),
        ("echo evil > .git/hooks/pre-commit; touch 0.begun; chmod 0 .git/hooks",),
        ("echo evil > .git/hooks/pre-commit; touch 0.begun; chmod 0 .git",),
        ("echo evil > .git/hooks/pre-commit; touch 0.begun; chmod 0 .",),
        ("echo evil > .git/hooks/pre-push&", "git init -q new; echo evil > .git/hooks/pre-commit"),
    ],
)
def test_changes_of_commands_are_reverted_after_a_kill(
    no_roots_place: Place, commands: tuple[str, ...], with_keeper: bool
) -> None:
    """By the keeper, or by the next start where that was killed too."""
    place = no_roots_place
    (place.folder / "sub").mkdir()
    give_to(place.user or os.getuid(), place.folder / "sub")
    before, work = git_files(place), place.folder.stat()
    lines = [
        f"{each.removesuffix('&')}; touch {number}.begun; sleep 30{'&' * each.endswith('&')}"
        for number, each in enumerate(commands)
    ]
    with place.start("-m", in_turn(place, *lines), "-p", "go", *AUTO) as running:
        names = [place.folder / f"{number}.begun" for number in range(len(commands))]
        wait_until(lambda: all(map(os.path.exists, names)), "the commands")
        if "chmod 0" in commands[0]:
            locked = place.folder / commands[0].rpartition(" ")[2]
            wait_until(lambda: locked.stat().st_mode & 0o777 == 0, "the mode")
        else:
            assert git_files(place) != before
        kill(running, with_keeper=with_keeper)
    if with_keeper:
        place.folder.chmod(work.st_mode & 0o7777)  # else nothing starts in there
        row = sandbox_row(place)
        assert "Reverted changes by a command whose session was killed:" in row
        assert f"{place.folder}/.git" in row
    else:
        wait_until(lambda: git_files(place) == before, "the hooks to be as they were")
        wait_until(lambda: not (place.folder / ".vscode").exists(), "what programs obey to be gone")
        told = run_in(place, "true", "true")
        assert f"{place.folder}/.git" in told[0]
        assert "changed by a command of a session that was killed" in told[0]
        assert told[1] == ""
    assert git_files(place) == before
    assert place.folder.stat().st_mode & 0o500 == 0o500
    assert (place.folder / "new/.git/config").exists() == (len(commands) == 2)
    assert "Reverted changes" not in place.run("doctor").out
    assert not list((place.home / "state/put_aside/unfinished").iterdir())


def test_an_immediate_start_waits_until_the_revert_is_done(place: Place) -> None:
    before = git_files(place)
    line = "trap '' TERM; echo evil > .git/hooks/pre-commit; touch begun; sleep 30"
    with place.start("-m", in_turn(place, line), "-p", "go", *AUTO) as running:
        wait_until((place.folder / "begun").exists, "the command")
        assert "Reverted changes" not in place.run("doctor").out  # that session is at it
        assert (place.folder / ".git/hooks/pre-commit").exists()
        kill(running, with_keeper=False)
    (told,) = run_in(place, "ls .git/hooks")
    assert "pre-commit\n" not in told
    assert f"{place.folder}/.git/hooks/pre-commit (what stood there is in " in told
    assert git_files(place) == before


@pytest.mark.parametrize("with_keeper", [False, True])
def test_changes_of_the_person_between_commands_survive_a_kill(place: Place, with_keeper: bool) -> None:
    with place.start("-m", in_turn(place, "true"), *STREAM, stdin=True) as running:
        running.say("go")
        running.wait_for_type("result")
        (place.folder / ".git/hooks/pre-commit").write_text("theirs")
        kill(running, with_keeper=with_keeper)
    assert run_in(place, "true") == [""]
    assert (place.folder / ".git/hooks/pre-commit").read_text() == "theirs"


FLIP = """
import ctypes, os, time
libc, here, exchange = ctypes.CDLL(None), -100, 2
until = time.monotonic() + 6
while time.monotonic() < until:
    if not os.path.lexists(".git/moved"):
        os.symlink("../../outside", ".git/moved")
    for _ in range(200):
        libc.renameat2(here, b".git/hooks", here, b".git/moved", exchange)
"""


@pytest.mark.full
def test_a_job_that_flips_links_leads_nothing_outside(place: Place) -> None:
    """A link stands for the hooks every other moment, while they are reverted after other commands again and again."""
    outside, hooks = place.folder.parent / "outside", place.folder / ".git/hooks"
    outside.mkdir()
    for number in range(100):
        (hooks / f"hook-{number}").write_text("ours")
        (outside / f"hook-{number}").write_text("theirs")
    (outside / "notes").write_text("theirs")
    (place.folder / "flip.py").write_text(FLIP)
    before, theirs = git_files(place), {path: path.read_text() for path in outside.iterdir()}
    flip, short = scripted(place, "exec python3 flip.py&", "true")
    replies = [{"tool_calls": [flip]}, *({"tool_calls": [short] * 20} for _ in range(10))]
    replies += [{"tool_calls": [call("bash", command="sleep 6")]}, {"text": "."}]
    ran = place.run("-m", place.script(*replies), "-p", "go", *AUTO)
    assert {path: path.read_text() for path in outside.iterdir()} == theirs, ran.out
    assert without_moved(place) == before


def approved(place: Place, *replies: dict[str, object], ids: tuple[str, ...]) -> Ran:
    """A session in which the person says yes to these calls."""
    with place.start("-m", place.script(*replies, {"text": "."}), *STREAM, stdin=True) as running:
        running.say("go")
        for each in ids:
            running.wait_for(lambda line, each=each: line.get("id") == each and "reason" in line)
            running.control("approve", id=each)
        running.wait_for_type("result")
        return running.ended()


@pytest.mark.full
def test_approved_changes_stay_while_a_job_runs(place: Place) -> None:
    """An edit that they approved, and a command that they let out of the sandbox."""
    (place.folder / ".vscode").mkdir()
    (place.folder / ".vscode/settings.json").write_text("{}")
    calls = [
        *scripted(place, "sleep 2&"),
        call("file_read", path=".vscode/settings.json"),
        call("file_edit", path=".vscode/settings.json", old_string="{}", new_string='{"a": 1}'),
        call("file_write", path=".husky/pre-push", content="theirs"),
        call("bash", command="git config user.signingkey ABC", unconfined=True),
        call("bash", command="sh -c 'sleep 3'"),
    ]
    ids = tuple(f"call_{number}_1" for number in (3, 4, 5))
    ran = approved(place, *({"tool_calls": [each]} for each in calls), ids=ids)
    assert ran.result["permission_denials"] == []
    assert (place.folder / ".vscode/settings.json").read_text() == '{"a": 1}'
    assert (place.folder / ".husky/pre-push").read_text() == "theirs"
    assert "ABC" in (place.folder / ".git/config").read_text()


WAIT = "until test -e go; do :; done"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("job", "written"),
    [
        (f"mkdir .husky; echo evil > .husky/pre-commit; touch begun; {WAIT}", ".husky/pre-push"),
        (f"echo evil > .vscode/tasks.json; touch begun; {WAIT}", ".vscode/settings.json"),
        (f"echo evil > .vscode/tasks.json; touch begun; {WAIT}", ".vscode/new/a/b.json"),
        (
            "touch begun; until test -e .vscode/x; do :; done; until test -e go; do cp 0.sh .vscode/x; done",
            ".vscode/x",
        ),
        (f"touch begun; {WAIT}; chmod 777 .husky/*; echo evil >> .husky/pre-push", ".husky/pre-push"),
        (f"touch begun; {WAIT}; rm -r .husky; ln -s /tmp .husky", ".husky/pre-push"),
    ],
)
def test_an_approval_to_one_file_means_nothing_that_a_job_put_beside_it(place: Place, job: str, written: str) -> None:
    """Or in its place, at whatever moment."""
    (place.folder / ".vscode").mkdir()
    (place.folder / ".vscode/tasks.json").write_text("{}")
    calls = [
        *scripted(place, f"{job}&"),
        call("bash", command="until test -e begun; do sleep 0.01; done"),
        call("file_write", path=written, content="theirs"),
        call("bash", command="touch go; sleep 1"),
    ]
    approved(place, *({"tool_calls": [each]} for each in calls), ids=("call_3_1",))
    assert (place.folder / written).read_text() == "theirs"
    assert not (place.folder / written).stat().st_mode & 0o111
    names = (path for name in (".vscode", ".husky") for path in (place.folder / name).rglob("*") if path.is_file())
    assert {str(path.relative_to(place.folder)) for path in names} == {written, ".vscode/tasks.json"}
    assert (place.folder / ".vscode/tasks.json").read_text() == "{}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", ["build/ev", "dist", "target/a/b", "node_modules/@x/y", ".cache/z", "Pods/P"])
@pytest.mark.parametrize("kind", ["landlock", "bubblewrap"])
def test_repositories_in_folders_that_tools_make_are_kept(place: Place, kind: str, folder: str) -> None:
    place.environment["AGENTCLI_SANDBOX_KIND"] = kind
    subprocess.run(["git", "init", "-q", str(place.folder / folder)], check=True)
    before = (place.folder / folder / ".git/config").read_text()
    run_in(place, f"echo evil > {folder}/.git/hooks/pre-commit; echo evil > {folder}/.git/config; true")
    assert not (place.folder / folder / ".git/hooks/pre-commit").exists()
    assert (place.folder / folder / ".git/config").read_text() == before


AS = "git -c user.name=a -c user.email=a@example.org"


@pytest.mark.parametrize(
    ("commands", "last"),
    [
        ((f"rm -rf .git && git init -q && git add a.py && {AS} commit -qm first", "git log --format=%s"), "first"),
        (
            (
                f"git add a.py && {AS} commit -qm first && git switch -qc other",
                "mkdir -p sub && git init -q sub && mv sub moved",
                "git log --format=%s other; test -e moved/.git/config",
            ),
            "first",
        ),
    ],
)
def test_ordinary_work_is_not_reverted(place: Place, commands: tuple[str, ...], last: str) -> None:
    outputs = [result.partition("[changes to the workspace")[0].strip() for result in run_in(place, *commands)]
    assert outputs == [*[""] * (len(commands) - 1), last]


def test_a_folder_that_is_renamed_takes_what_programs_execute_with_it(place: Place) -> None:
    (place.folder / "pkg/.vscode").mkdir(parents=True)
    (place.folder / "pkg/.vscode/settings.json").write_text("{}")
    subprocess.run(["git", "init", "-q", str(place.folder / "sub")], check=True)
    evil = "echo evil > sub2/.git/hooks/pre-commit; echo evil > packages/.vscode/settings.json"
    run_in(place, f"mv pkg packages && mkdir pkg && echo work > pkg/new.py && mv sub sub2; {evil}")
    assert (place.folder / "pkg/new.py").read_text() == "work\n"
    assert (place.folder / "packages/.vscode/settings.json").read_text() == "{}"
    assert not (place.folder / "sub2/.git/hooks/pre-commit").exists()


def test_what_was_granted_stays_changed(place: Place) -> None:
    subprocess.run(["git", "init", "-q", str(place.folder / "sub")], check=True)
    place.home.mkdir(exist_ok=True)
    granted = [str(place.folder / name) for name in ("sub", ".vscode")]
    (place.home / "config.toml").write_text(f"[sandbox]\nwritable = {json.dumps(granted)}\n")
    (place.folder / ".vscode").mkdir()
    mine = "echo mine | tee sub/.git/hooks/pre-push .vscode/tasks.json"
    told = run_in(place, f"{mine}; echo evil > .git/hooks/pre-push", "true")
    assert ".git/hooks/pre-push" in told[0]
    assert not (place.folder / ".git/hooks/pre-push").exists()
    assert {(place.folder / name).read_text() for name in ("sub/.git/hooks/pre-push", ".vscode/tasks.json")} == {
        "mine\n"
    }
    assert told[1] == ""


def test_a_change_that_cannot_be_reverted_for_lack_of_space_is_reported_once(place: Place) -> None:
    hook = place.folder / ".git/hooks/pre-commit"
    hook.write_bytes(bytes(17_000_000))
    told = run_in(place, "true", "echo evil > .git/hooks/pre-commit", "true")
    changed = f"could not be reverted: {hook} (there was no room to keep a copy of it)"
    assert [changed in each for each in told] == [False, True, False]


@pytest.mark.full
def test_a_repository_with_many_hooks_leaves_room_for_the_others(place: Place) -> None:
    (place.folder / "aaa").mkdir()
    subprocess.run(["git", "init", "-q", str(place.folder / "sub")], check=True)
    (place.folder / "sub/.git/hooks/pre-push").write_text("ours")
    fill = "git init -q aaa && cd aaa/.git/hooks && seq 25000 | xargs touch"
    run_in(place, fill, "for each in .git sub/.git; do echo evil > $each/hooks/pre-commit; done; rm sub/.git/hooks/*")
    assert not (place.folder / "sub/.git/hooks/pre-commit").exists()
    assert (place.folder / "sub/.git/hooks/pre-push").read_text() == "ours"
    assert not (place.folder / ".git/hooks/pre-commit").exists()


@pytest.mark.full
def test_a_folder_with_more_than_can_be_kept_is_reported_once_and_its_settings_come_first(place: Place) -> None:
    claude = place.folder / ".claude"
    for name in ("hooks", "cache"):
        (claude / name).mkdir(parents=True)
    for number in range(10_000):
        (claude / f"cache/{number:05}").touch()
    for name in ("settings.json", "hooks/zz"):
        (claude / name).write_text("ours")
    first, second = run_in(place, "for each in settings.json hooks/zz; do echo evil > .claude/$each; done", "true")
    assert f"[{claude}/cache has more files than this sandbox can revert: tell the user]" in first
    assert "than this sandbox can revert" not in second
    assert {(claude / name).read_text() for name in ("settings.json", "hooks/zz")} == {"ours"}


@pytest.mark.parametrize(
    ("command", "kept", "text"),
    [
        ("mkdir .vscode && mv precious .vscode/tasks.json", "vscode/tasks.json", "the only copy"),
        ("echo theirs > .idea/workspace.xml", "workspace.xml", "theirs"),
    ],
)
def test_what_was_substituted_the_place_is_kept_elsewhere(place: Place, command: str, kept: str, text: str) -> None:
    (place.folder / "precious").write_text("the only copy\n")
    (place.folder / ".idea").mkdir()
    (place.folder / ".idea/workspace.xml").write_text("ours\n")
    (told,) = run_in(place, command)
    folder = Path(told.partition("what stood there is in ")[2].partition(")")[0])
    assert (folder / kept).read_text() == f"{text}\n"


READS = "python3 -c \"print(open('.env').read()[::-1])\""  # backwards, so that no masking could hide it


@pytest.mark.parametrize("mode", ["default", "plan", "acceptEdits", "auto"])
def test_a_command_that_only_reads_is_not_shown_secret_files(place: Place, mode: str) -> None:
    (place.folder / ".env").write_text(f"NAME={CANARY}\n")
    calls = [call("bash", command=command) for command in ("grep -r NAME .", "cat a.py")]
    script = place.script({"tool_calls": calls}, {"text": "{{last_result}}"})
    ran = place.run("-m", script, "-p", "go", "--permission-mode", mode, "--output-format", "stream-json")
    assert CANARY not in ran.out
    assert ran.result["result"] == "print(1)"


@pytest.mark.parametrize(
    ("flags", "is_allowed"),
    [
        (AUTO, False),
        (("--allow", "bash(python3 *)"), False),
        (("--permission-mode", "dontAsk"), False),
        ((*AUTO, "--allow", "Read(.env)"), True),  # a rule that means the file answers beforehand
    ],
)
def test_a_command_that_could_read_secret_files_asks_and_says_why(
    place: Place, flags: tuple[str, ...], is_allowed: bool
) -> None:
    (place.folder / ".env").write_text(f"NAME={CANARY}\n")
    script = place.script({"tool_calls": [call("bash", command=READS)]}, {"text": "{{last_result}}"})
    ran = place.run("-m", script, "-p", "go", *flags, "--output-format", "json")
    assert len(ran.result["permission_denials"]) == (not is_allowed)
    assert (CANARY[::-1] in ran.out) == is_allowed
    assert "your approval" not in ran.result["result"]
    if not is_allowed and "dontAsk" not in flags:
        assert "this sandbox cannot hide .env from commands (to always allow this: the rule" in ran.result["result"]


SHOWS_NONE = (
    "cat a.py | head -2",
    "head -2 < a.py",
    "cat a.py | grep -n print | sort -u | uniq -c | wc -l",
    "cat a.py | tr a b | cut -c1-3 | sed -n 1p | awk '{print $1}' | nl | tac | rev",
    "git status --short | head",
    "git log --oneline -5",
    "git -C . log --stat --author=x",
    "git diff --stat",
    "git show --name-only HEAD",
    "git branch -a; git tag; git remote -v; git ls-files; git rev-parse HEAD",
    "git shortlog -s HEAD; git describe --always; git show-ref",
    "git diff HEAD -- a.py; git blame a.py",
)
MAY_SHOW = (
    "grep -r NAME",
    "cat a.py | grep -nr NAME",
    "cat a.py | rg NAME",
    "git diff",
    "git diff --stat -p",
    "git log -p",
    "git log -U3",
    "git show",
    "git status -v",
    "git grep --no-index NAME",
    "git show HEAD",
    "git diff HEAD -- :!a.py",
    "grep -d recurse NAME",
    "cat a.py | head -1; grep -R NAME .",
)


@pytest.mark.parametrize(("commands", "are_asked"), [(SHOWS_NONE, False), (MAY_SHOW, True)])
def test_only_a_command_that_may_show_a_file_is_asked_about(
    place: Place, commands: tuple[str, ...], are_asked: bool
) -> None:
    (place.folder / ".env").write_text(f"NAME={CANARY}\n")
    subprocess.run(f"git add a.py && {AS} commit -qm first", shell=True, cwd=place.folder, check=True)
    script = place.script({"tool_calls": [call("bash", command=command) for command in commands]}, {"text": "."})
    ran = place.run("-m", script, "-p", "go", "--sandbox", "danger-full-access", "--output-format", "json")
    refused = [denial["tool_input"]["command"] for denial in ran.result["permission_denials"]]
    assert refused == (list(commands) if are_asked else [])


def test_it_is_asked_once_a_session(place: Place) -> None:
    (place.folder / ".env").write_text(f"NAME={CANARY}\n")
    calls = [{"tool_calls": [call("bash", command=f"python3 -c 'print({n})'")]} for n in range(2)]
    ran = approved(place, *calls, ids=("call_1_1",))
    (asked,) = ran.of("system", "approval_requested")
    assert "this sandbox cannot hide .env from commands" in asked["reason"]
    assert "; your approval lasts for this session" in asked["reason"]
    assert ran.result["permission_denials"] == []


def test_a_weak_sandbox_is_a_warning_of_doctor_and_no_failure(place: Place) -> None:
    row = sandbox_row(place)
    assert row.startswith("! ")
    assert "Weak sandbox (landlock): commands that may write can read secret files" in row
    assert "change modes, times and attributes of your files anywhere" in row


def test_the_first_screen_says_that_the_sandbox_is_weak(open_terminal: Open) -> None:
    skip_without_landlock()
    open_terminal([], **KIND).see(r"Weak sandbox \(landlock\)")


def test_a_script_that_a_trusted_hook_runs_is_reverted(place: Place) -> None:
    script = place.folder / "scripts/guard.sh"
    script.parent.mkdir()
    script.write_text(f"echo ran >> {place.folder.parent}/runs\n")
    (place.folder / ".agentcli").mkdir()
    hook = {"hooks": [{"type": "command", "command": "sh scripts/guard.sh"}]}
    (place.folder / ".agentcli/hooks.json").write_text(json.dumps({"hooks": {"PreToolUse": [hook]}}))
    place.run("config", "trust")
    told, _ = run_in(place, "echo evil > scripts/guard.sh", "true")
    assert "[the sandbox reverted changes" in told
    assert (place.folder.parent / "runs").read_text() == "ran\nran\n"


def test_a_command_that_only_reads_changes_no_modes_and_times_outside(place: Place) -> None:
    outside = place.folder.parent / "outside"
    outside.touch(mode=0o600)
    before = outside.stat()
    place.environment["AGENTCLI_SANDBOX_PROFILE"] = "read-only"
    (told,) = run_in(place, f"chmod 777 {outside}; touch -d 2001-01-01 {outside}", mode="bypassPermissions")
    assert "Operation not permitted" in told
    assert outside.stat() == before
