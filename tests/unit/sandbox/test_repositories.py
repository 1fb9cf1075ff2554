"""Scanning a workspace for repositories, secret files and what programs obey."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from agentcli.infra.sandbox.confinement import Bounds, CommandResources
from agentcli.infra.sandbox.mount_points import MountPoints
from agentcli.infra.sandbox.protection.planning import plan_protection
from agentcli.infra.sandbox.scan import Scan


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


def names(found: list[str], root: Path) -> list[str]:
    return [str(Path(path).relative_to(root)) for path in found]


def test_the_nearest_come_first_and_the_root_is_not_among_them(tmp_path: Path) -> None:
    make(tmp_path, ".git", "a/b/.git", "c/.git", "d/e", "node_modules/x/.git")
    (tmp_path / "d/e/.git").write_text("gitdir: elsewhere")
    assert names(Scan().repositories(str(tmp_path)), tmp_path) == ["c", "a/b", "d/e", "node_modules/x"]


def test_what_tools_install_is_looked_at_two_levels_deep_after_the_rest(tmp_path: Path) -> None:
    make(tmp_path, "build/a/b/c/.git", "venv/.git", "venv/x/.git", "venv/a/b/c/.git", "a/target/P/.git")
    make(tmp_path, "a/__pycache__/x/.git", ".git/modules/.git")
    found = names(Scan().repositories(str(tmp_path)), tmp_path)
    assert found == ["build/a/b/c", "venv", "venv/x", "a/target/P"]


def test_the_inside_of_a_repository_counts_where_it_lies_open(tmp_path: Path) -> None:
    """Git takes it for one when it is started there."""
    make(tmp_path, "bare/objects", "bare/refs", "half/objects")
    (tmp_path / "bare/HEAD").touch()
    assert names(Scan().repositories(str(tmp_path)), tmp_path) == ["bare"]


CHANGES = """
import os, shutil, sys
from pathlib import Path
from agentcli.infra.sandbox.scan import Scan

root = Path(sys.argv[1])
scan = Scan(lambda path: path.name.startswith(".env"))

def check(path, names):
    folder = scan.folders(str(root)).get(str(root / path))
    found = folder and [secret.name for secret in folder.secrets] + [".git"] * folder.is_repository
    assert found == names, (path, names, found)

(root / "a/b/c").mkdir(parents=True)
(root / "venv/x/y").mkdir(parents=True)
check("a/b/c", [])
(root / "a/b/c/.env").touch()
check("a/b/c", [".env"])
(root / "a/b/c/d/e/f/.git").mkdir(parents=True)
check("a/b/c/d/e/f", [".git"])
(root / "venv/z/deep/er/.git").mkdir(parents=True)
(root / "a").rename(root / "moved")
check("a/b/c", None)
check("moved/b/c/d/e/f", [".git"])
(root / "moved/b/c/d/e/f/.env").touch()
check("moved/b/c/d/e/f", [".env", ".git"])
(root / "other/b").mkdir(parents=True)
check("other/b", [])
(root / "moved/b").rename(root / "was")
(root / "other/b").rename(root / "moved/b")
(root / "moved/b/.env.1").touch()
check("moved/b", [".env.1"])
check("moved/b/c", None)
shutil.rmtree(root / "was")
(root / "was").mkdir()
(root / "was/x").mkdir()
check("was/x", [])
stamp = (root / "was/x").stat()
(root / "was/x/.env.2").touch()
(root / "was/x/new/.git").mkdir(parents=True)
os.utime(root / "was/x", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
check("was/x", [".env.2"])
check("was/x/new", [".git"])
for number in range(50):
    (root / "was" / str(number)).mkdir()
    check(f"was/{number}", [])
print("WATCHED" if scan._trees[str(root)].watch.is_complete else "COMPARED")
"""
WITHOUT_WATCHES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh")


@pytest.mark.parametrize(("before", "how"), [((), "WATCHED"), (WITHOUT_WATCHES, "COMPARED")])
def test_files_created_at_any_depth_are_found_at_once(tmp_path: Path, before: tuple[str, ...], how: str) -> None:
    if sys.platform != "linux" or subprocess.run([*before, "true"], check=False).returncode:
        pytest.skip("no kernel that notes changes, or no user namespaces, in which that can be taken away")
    command = [*before, sys.executable, "-c", CHANGES, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (how, "")


def test_too_many_folders_are_reported_and_those_of_tools_have_room_of_their_own(tmp_path: Path) -> None:
    scan = Scan(max_folders=(5, 5, 1), max_s=10)
    make(tmp_path, "a", "b", "c", "d", "venv/x/y", "venv/z")
    found = names([*scan.folders(str(tmp_path))], tmp_path)
    assert found == [".", "a", "b", "c", "d", "venv", "venv/x"]
    assert not scan.is_partial(str(tmp_path))
    make(tmp_path, "e", "f", "g", "h", "i", "j")
    scan.folders(str(tmp_path))
    assert scan.is_partial(str(tmp_path))
    assert str(tmp_path / "venv/x") in scan.folders(str(tmp_path))  # it was seen before


def test_a_walk_that_ran_out_of_time_continues_with_the_next_command(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}/inside" for number in range(8)), "venv/x")
    for number in range(8):
        (tmp_path / f"{number}/.env").touch()

    def is_secret(path: Path) -> bool:
        time.sleep(0.02)
        return True

    scan = Scan(is_secret, max_s=0.05)
    assert len(scan.folders(str(tmp_path))) < 1 + 2 * 8 + 2
    for _ in range(8):
        found = scan.folders(str(tmp_path))
    assert len(found) == 1 + 2 * 8 + 2
    assert not scan.is_partial(str(tmp_path))


def test_changes_that_the_kernel_did_not_report_are_found_after_a_while(tmp_path: Path) -> None:
    scan = Scan()
    scan.folders(str(tmp_path))
    make(tmp_path, "a/b")
    tree = scan._trees[str(tmp_path)]
    tree.watch.take_changes()  # as if another machine had made it
    tree.watched_until = 0
    assert names([*scan.folders(str(tmp_path))], tmp_path) == [".", "a", "a/b"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "ws", "outside/.git")
    (tmp_path / "ws/link").symlink_to(tmp_path / "outside")
    (tmp_path / "ws/loop").symlink_to(tmp_path / "ws")
    assert Scan().repositories(str(tmp_path / "ws")) == []


def test_a_rule_that_is_added_later_counts_at_once(tmp_path: Path) -> None:
    (tmp_path / "plans.txt").touch()
    rules: list[str] = []

    def is_denied(path: Path) -> bool:
        return path.name in rules

    scan = Scan(denied=lambda: is_denied if rules else None)
    assert scan.secrets_and_auto_executed([tmp_path])[0] == []
    rules.append("plans.txt")
    assert scan.secrets_and_auto_executed([tmp_path])[0] == [tmp_path / "plans.txt"]
    rules.clear()
    assert scan.secrets_and_auto_executed([tmp_path])[0] == []


@pytest.mark.parametrize(
    "change",
    [
        "git init -q sub",
        "mkdir .vscode",
        "mkdir -p .git/modules/x",
        "mv .git/hooks x; ln -s ../x .git/hooks",
        "touch -r .git/config t; printf '[core]\n\thooksPath = hk' >> .git/config; touch -r t .git/config; rm t",
    ],
)
def test_a_plan_is_kept_until_something_changes_whatever_time_it_is_given(tmp_path: Path, change: str) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    bounds = Bounds(profile="workspace-write", roots=(tmp_path,), home=tmp_path.parent, protected=(".vscode",))
    time.sleep(0.05)  # else no plan is kept
    before = plan_protection(bounds, str(tmp_path))
    with closing(MountPoints()) as points:
        points.ensure(f"{tmp_path}/.vscode")
        points.ensure(f"{tmp_path}/.git/commondir", b".\n")
    assert plan_protection(bounds, str(tmp_path)) is before
    subprocess.run(["sh", "-c", change], cwd=tmp_path, check=True)
    after = plan_protection(bounds, str(tmp_path))
    assert after is not before
    assert after == plan_protection(msgspec.structs.replace(bounds, resources=CommandResources()), str(tmp_path))


def test_a_plan_that_was_overtaken_by_a_change_is_not_kept(tmp_path: Path) -> None:
    """Another thread may have looked, and taken note of the change."""
    root, git = tmp_path / "ws", tmp_path / "git"
    make(root, "a/.git/hooks")
    (root / "a/.git/config").write_text("[core]\n")
    git.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/begun; until [ -e {tmp_path}/made ]; do sleep .01; done\nexec git $@\n"
    )
    git.chmod(0o755)
    bounds = Bounds(profile="workspace-write", roots=(root,), home=tmp_path, resources=CommandResources(git=str(git)))
    time.sleep(0.05)  # what is young is not relied on
    with ThreadPoolExecutor() as threads:
        plan = threads.submit(plan_protection, bounds, str(root))
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        make(root, ".git/hooks")
        (root / ".git/config").write_text("[core]\n")
        bounds.resources.scan.secrets_and_auto_executed([root])
        (tmp_path / "made").touch()
        plan.result()
    assert str(root / ".git/hooks") in plan_protection(bounds, str(root)).read_only
