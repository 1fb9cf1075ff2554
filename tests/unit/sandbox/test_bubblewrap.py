"""Commands in bubblewrap: git works, names stay protected, nothing is left behind, nothing survives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from agentcli.infra.sandbox.backends.linux import render_mounts
from agentcli.infra.sandbox.confinement import Bounds, CommandResources, Confinement
from tests.conformance.confining import (
    alive,
    clean_environment,
    confinement_for,
    git,
    give_to,
    picture,
    python_of,
    run,
    wait_until,
)

NAMES = (".agentcli", ".vscode", ".mcp.json")


@pytest.fixture(params=["bubblewrap, root", "bubblewrap, root in a user namespace", "bubblewrap, user"])
def who(request: pytest.FixtureRequest) -> tuple[Confinement, int]:
    return confinement_for(request.param)


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("a\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def bounds_of(*roots: Path, **more: object) -> Bounds:
    given = {"profile": "workspace-write", "roots": roots, "home": roots[0].parent, "protected": NAMES} | more
    return Bounds(**given)


EVERYDAY_GIT = """
set -e
echo b >>a.txt; git add a.txt; git commit -qm second
git checkout -q -b topic; echo c >c.txt; git add c.txt; git commit -qm topic
git checkout -q main; git merge -q topic; git rebase -q HEAD~1; echo d >>a.txt; git stash -q; git stash pop -q
git tag v1; git gc -q; git fsck --no-progress; git worktree list
git status --short
"""


@pytest.mark.slow
def test_everyday_git_works(who: tuple[Confinement, int], base: Path) -> None:
    confinement, uid = who
    ws = repository(base / "ws")
    give_to(uid, base)
    done = run(confinement, bounds_of(ws), EVERYDAY_GIT, uid=uid)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" M a.txt\n")
    assert git(ws, "log", "--format=%s").split() == ["topic", "second", "first"]


def test_git_works_in_a_linked_worktree_whose_repository_stays_protected(
    who: tuple[Confinement, int], base: Path
) -> None:
    confinement, uid = who
    main = repository(base / "main")
    git(main, "worktree", "add", "-q", str(base / "tree"))
    give_to(uid, base)
    script = """
        echo b >b; git add b; git commit -qm second || exit 1
        for file in hooks/x config commondir worktrees/tree/commondir worktrees/tree/gitdir; do
            echo evil 2>/dev/null >../main/.git/$file && echo "wrote $file"
        done
        mv .git g; mv ../main/.git ../main/g; echo evil 2>/dev/null >.git; echo x 2>/dev/null >../main/a.txt; true
    """
    done = run(confinement, bounds_of(base / "tree"), script, uid=uid)
    assert (done.returncode, done.stdout) == (0, "")
    assert git(base / "tree", "log", "--format=%s").split() == ["second", "first"]
    assert (main / "a.txt").read_text() == "a\n"


def test_missing_names_cannot_be_made_and_nothing_is_left(who: tuple[Confinement, int], base: Path) -> None:
    confinement, uid = who
    ws = repository(base / "ws")
    give_to(uid, base)
    before = picture(ws)
    script = "for name in .agentcli .vscode .mcp.json; do mkdir $name/x; rmdir $name; mv $name y; echo >$name; done"
    done = run(confinement, bounds_of(ws), f"{script}; git status --short", uid=uid)
    assert len(done.stderr.splitlines()) == 12
    assert done.stdout == ""  # not even git sees what stands there while the command runs
    assert picture(ws).keys() == before.keys()


def test_only_reading_when_that_is_the_profile(who: tuple[Confinement, int], base: Path) -> None:
    confinement, uid = who
    ws = repository(base / "ws")
    give_to(uid, base)
    before = picture(base)
    bounds = bounds_of(ws, profile="read-only", writable=(ws,))
    done = run(
        confinement, bounds, "cat a.txt; echo x >a.txt; touch new; echo tmp >$TMPDIR/x && cat $TMPDIR/x", uid=uid
    )
    assert done.stdout == "a\ntmp\n"
    assert picture(base) == before


def test_a_workspace_in_tmp_is_seen_in_the_private_tmp_and_nothing_else_of_it(
    who: tuple[Confinement, int],
) -> None:
    confinement, uid = who
    folder = Path(
        subprocess.run(
            ["mktemp", "-d", "/tmp/agentcli-XXXXXX"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    try:
        for name in ("ws", "home", "other"):
            (folder / name).mkdir()
        (folder / "home/.netrc").write_text("SECRET")
        give_to(uid, folder)
        bounds = bounds_of(folder / "ws", home=folder / "home", masked=(folder / "home/.netrc",))
        done = run(confinement, bounds, "touch new ../home/x ../other/x; cat ~/.netrc; ls ..; stat -c %a /tmp", uid=uid)
        assert done.stdout == "home\nws\n1777\n"
        assert (folder / "ws/new").exists()
        assert not (folder / "home/x").exists()
    finally:
        shutil.rmtree(folder)


def test_descriptors_that_are_passed_arrive_and_others_do_not(bubblewrap: Confinement, base: Path) -> None:
    ws = base / "ws"
    (ws / "sub").mkdir(parents=True)
    read, write = os.pipe()
    try:
        argv = ["bash", "-c", f"cd sub; pwd -P >/dev/fd/{write}; ls /proc/self/fd"]
        planned = bubblewrap.launch(argv, cwd=ws, bounds=bounds_of(ws))
        with planned as launch, render_mounts(launch) as launch:
            done = subprocess.run(
                launch.argv,
                pass_fds=(write, *launch.pass_fds),
                capture_output=True,
                text=True,
                check=True,
                cwd=ws,
            )
        assert os.read(read, 1000).decode() == f"{ws / 'sub'}\n"
        assert {int(name) for name in done.stdout.split()} == {0, 1, 2, 3, write}  # 3: ls reads the folder
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.slow
def test_commands_at_the_same_time_protect_each_other(bubblewrap: Confinement, base: Path) -> None:
    """The first to end must not take away what the others are mounted on."""
    ws = repository(base / "ws")
    before = picture(ws)
    script = (
        "for i in $(seq {}); do mkdir .vscode/x 2>/dev/null; echo ../x 2>/dev/null >.git/commondir; sleep 0.02; done"
    )

    def go(number: int) -> int:
        done = run(bubblewrap, bounds_of(ws), script.format(number % 5 + 1))
        return done.returncode

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(go, range(24)))
    assert picture(ws).keys() == before.keys()


@pytest.mark.slow
def test_a_long_command_stays_protected_after_a_short_one_in_another_process(
    bubblewrap: Confinement, base: Path
) -> None:
    ws = repository(base / "ws")
    script = "sleep 1; mkdir .vscode/x; mkdir .vscode; echo ../x >.git/commondir; true"
    with started(bubblewrap, bounds_of(ws), script) as long:
        wait_until((ws / ".vscode").exists)
        subprocess.run([sys.executable, "-c", _SHORT, str(ws)], check=True, cwd=Path(__file__).parents[3])
        assert (ws / ".vscode").exists()
        assert long.wait() == 0
    assert not (ws / ".vscode").exists()
    assert not (ws / ".git/commondir").exists()


_SHORT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from tests.conformance.confining import run
    from tests.unit.sandbox.test_bubblewrap import bounds_of, confinement_for
    import os
    which = confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")[0]
    assert run(which, bounds_of(Path(sys.argv[1])), "true").returncode == 0
    """
)


@pytest.mark.slow
def test_leftovers_of_a_killed_agentcli_are_removed_by_the_next_command(bubblewrap: Confinement, base: Path) -> None:
    ws = repository(base / "ws")
    before = picture(ws)
    held = subprocess.Popen([sys.executable, "-c", _HOLDING, str(ws)], cwd=Path(__file__).parents[3])
    wait_until(lambda: (ws / ".vscode").exists() and (ws / ".git/commondir").exists())
    held.kill()
    held.wait()
    assert (ws / ".vscode").exists()
    run(bubblewrap, bounds_of(ws), "true")
    assert picture(ws).keys() == before.keys()


_HOLDING = _SHORT.replace('"true").returncode == 0', '"sleep 60").returncode == 0')


def test_files_that_the_person_creates_meanwhile_stay(bubblewrap: Confinement, base: Path) -> None:
    ws = base / "ws"
    ws.mkdir()
    with started(bubblewrap, bounds_of(ws), "sleep 0.5") as process:
        wait_until((ws / ".vscode").exists)
        (ws / ".vscode/settings.json").write_text("{}")
        process.wait()
    assert (ws / ".vscode/settings.json").read_text() == "{}"
    assert (ws / ".vscode").stat().st_mode & 0o7777 == 0o755


# Processes that try to outlive their command.
DEEDS = {
    "plain": "sleep {n} & sleep {n}",
    "nohup": "nohup sleep {n} >/dev/null 2>&1 & sleep {n}",
    "setsid": "setsid sleep {n} & sleep {n}",
    "double fork": "(setsid sh -c 'sleep {n} & sleep {n}' &) ; sleep {n}",
    "trap": "trap '' TERM INT HUP; sleep {n} & sleep {n}",
    "pipeline": "sleep {n} | sleep {n} | sleep {n}",
    "set -m": "set -m; sleep {n} & sleep {n}",
}


def group_of_init(pid: int) -> int | None:
    """The process group of the sandbox's init, below bwrap; bwrap itself would die at once and end everything."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next((int(child) for child in children if os.getpgid(int(child)) == int(child)), None)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill bwrap", "kill its parent", "ask"])
@pytest.mark.parametrize("deed", list(DEEDS))
def test_nothing_survives(bubblewrap: Confinement, base: Path, deed: str, end: str) -> None:
    seconds = f"{600 + len(deed)}.{os.getpid()}"  # to know them by
    ws = base / "ws"
    ws.mkdir()
    if end == "kill its parent":
        arguments = msgspec.json.encode([str(ws), DEEDS[deed].format(n=seconds)]).decode()
        parent = subprocess.Popen([sys.executable, "-c", _RUNNING, arguments], cwd=Path(__file__).parents[3])
        wait_until(lambda: alive(seconds))
        parent.kill()
        parent.wait()
    else:
        with started(bubblewrap, bounds_of(ws), DEEDS[deed].format(n=seconds)) as process:
            wait_until(lambda: alive(seconds))
            if end == "ask":
                group = group_of_init(process.pid)
                assert group not in {None, process.pid}
                os.killpg(group, signal.SIGTERM)
                if deed == "trap":
                    time.sleep(0.1)
                    process.kill()
            else:
                process.kill()
            process.wait()
    wait_until(lambda: not alive(seconds))


_RUNNING = (
    _SHORT.replace("sys.argv[1]", "given[0]")
    .replace('"true").returncode == 0', "given[1])")
    .replace("which =", "import json; given = json.loads(sys.argv[1]); which =")
)


def test_a_command_gets_time_to_clean_up_when_it_is_asked_to_end(bubblewrap: Confinement, base: Path) -> None:
    ws = base / "ws"
    ws.mkdir()
    script = "trap 'echo done >cleaned; exit 3' TERM; touch ready; while :; do sleep 0.01; done"
    with started(bubblewrap, bounds_of(ws), script) as process:
        wait_until((ws / "ready").exists)
        group = group_of_init(process.pid)
        assert group is not None
        os.killpg(group, signal.SIGTERM)
        assert process.wait() == 3
    assert (ws / "cleaned").exists()


def test_package_managers_keep_their_caches_where_they_can_write(bubblewrap: Confinement, base: Path) -> None:
    ws, cache = base / "ws", base / "cache"
    ws.mkdir()
    cache.mkdir()
    run(bubblewrap, bounds_of(ws, resources=CommandResources(cache=cache)), 'mkdir -p "$GOCACHE" && touch "$GOCACHE/x"')
    assert (cache / "go-build/x").exists()
    without = run(bubblewrap, bounds_of(ws), 'mkdir -p "$GOCACHE" && echo "$GOCACHE"')
    assert without.stdout == "/tmp/.cache/go-build\n"


def test_a_missing_folder_is_reported(bubblewrap: Confinement, base: Path) -> None:
    with (
        bubblewrap.launch(["true"], cwd=base / "gone", bounds=bounds_of(base)) as launch,
        render_mounts(launch) as launch,
    ):
        done = subprocess.run(launch.argv, pass_fds=launch.pass_fds, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gone" in done.stderr


@contextlib.contextmanager
def started(confinement: Confinement, bounds: Bounds, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """As `Shell` does: again where what the sandbox was planned around has gone, as sockets of other tests do."""
    for _ in range(5):
        begun, begun_write = os.pipe()
        told = f"printf . >/dev/fd/{begun_write}; exec {begun_write}>&-; {script}"
        planned = confinement.launch(["bash", "-c", told], cwd=bounds.roots[0], bounds=bounds)
        with planned as launch, render_mounts(launch) as launch:
            process = subprocess.Popen(
                launch.argv,
                pass_fds=(*launch.pass_fds, begun_write),
                env={**clean_environment(bounds.home), **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.close(begun_write)
            with os.fdopen(begun, "rb") as pipe:
                has_begun = pipe.read(1) != b""
            try:
                if has_begun:
                    yield process
                    return
            finally:
                process.kill()
                process.wait()
    raise AssertionError("the sandbox could not be set up")


def test_sockets_of_the_host_are_hidden_wherever_they_are(bubblewrap: Confinement, base: Path) -> None:
    ws, home = base / "ws", base / "home"
    ws.mkdir()
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as own:
        server.bind(str(home / "agent.sock"))
        server.listen()
        own.bind(str(ws / "project.sock"))
        own.listen()
        argv = [str(python_of(os.getuid())), "-c", _CONNECTING, str(home / "agent.sock"), str(ws / "project.sock")]
        done = run(bubblewrap, bounds_of(ws, home=home), argv)
    assert done.stdout.split() == ["refused", "open"]


_CONNECTING = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("open")
    except OSError:
        print("refused")
"""
