"""Opening and writing files of this machine: what was judged is what is opened, and a write is all or nothing."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - a process that gave up root's rights may not be able to import it
import errno
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcli.infra.changes.writing import open_to_read, opened_folder, write, write_atomically
from tests.unit.tools.bench import Bench


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Links put in place of what was judged


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "outside/secret"
    path.parent.mkdir()
    path.write_text("secret")
    return path


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/secret").write_text("mine")
    return path


@pytest.mark.parametrize("part", ["a", "a/b", "a/b/secret"])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_link_put_in_place_of_any_part_is_not_followed(
    ws: Path, secret: Path, part: str, *, is_absolute: bool
) -> None:
    swapped = ws / part
    target = secret if part.endswith("secret") else secret.parent
    if part == "a":  # so that the rest of the path is there behind the link
        (secret.parent / "b").mkdir()
        (secret.parent / "b/secret").write_text("secret")
    shutil.rmtree(swapped) if swapped.is_dir() else swapped.unlink()
    swapped.symlink_to(target if is_absolute else os.path.relpath(target, swapped.parent))
    for attempt in (lambda: open_to_read(ws / "a/b/secret"), lambda: write(ws / "a/b/secret", b"overwritten")):
        with pytest.raises(OSError, match="a link was put in place of"):
            attempt()
    assert secret.read_text() == "secret"
    assert names(secret.parent) <= {"secret", "b", "b/secret"}


def test_no_write_gets_out_while_somebody_swaps_a_folder_for_a_link(ws: Path, secret: Path) -> None:
    folder, aside, link = ws / "a/b", ws / "a/aside", ws / "a/link"
    link.symlink_to(secret.parent)
    is_over = threading.Event()

    def put(source: Path, target: Path) -> None:
        while True:
            try:
                source.rename(target)
                return
            except OSError:  # a write has made the folder that was missing
                shutil.rmtree(target, ignore_errors=True)

    def swap() -> None:
        while not is_over.is_set():
            put(folder, aside)
            put(link, folder)
            put(folder, link)
            put(aside, folder)

    swapper = threading.Thread(target=swap)
    swapper.start()
    done = refused = 0
    try:
        while done + refused < 1_500:
            try:
                write(folder / "secret", b"x" * 100)
                with open_to_read(folder / "secret") as file:
                    assert file.read() in (b"x" * 100, b"mine")  # the link may have been swapped in between
                done += 1
            except OSError:
                refused += 1
    finally:
        is_over.set()
        swapper.join()
    assert secret.read_text() == "secret"
    assert names(secret.parent) == {"secret"}
    assert done
    assert refused


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read_or_written(ws: Path, make: object) -> None:
    assert callable(make)
    make(ws / "odd")
    for attempt in (lambda: open_to_read(ws / "odd"), lambda: write(ws / "odd", b"x")):
        with pytest.raises(OSError, match="not a regular file"):
            attempt()
    assert names(ws) == {"a", "a/b", "a/b/secret", "odd"}


def test_descriptors_are_closed_again(ws: Path) -> None:
    gc.collect()  # else what earlier tests left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for number in range(20):
        write(ws / f"a/new{number}/deep/file", b"x")
        write(ws / "a/b/secret", b"y")
        open_to_read(ws / "a/b/secret").close()
        for path in (ws / "a/b/secret/none", ws / "none/none"):
            with pytest.raises(OSError):
                open_to_read(path)
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


# What a file keeps


def test_folders_are_made_with_the_mode_the_umask_leaves(ws: Path) -> None:
    before = os.umask(0o027)
    try:
        write(ws / "x/y/file", b"1")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((ws / name).stat().st_mode) for name in ("x", "x/y", "x/y/file")] == [0o750, 0o750, 0o640]


def test_extended_attributes_stay(ws: Path) -> None:
    path = ws / "a/b/secret"
    try:
        os.setxattr(path, "user.origin", b"the person")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    write(path, b"new")
    assert os.getxattr(path, "user.origin") == b"the person"


def test_a_hard_link_keeps_its_inode_and_grows_and_shrinks(ws: Path) -> None:
    path = ws / "a/b/secret"
    (ws / "other").hardlink_to(path)
    before = path.stat().st_ino
    for content in (b"longer than before" * 1_000, b"", b"short"):
        write(path, content)
        assert (ws / "other").read_bytes() == content
    assert path.stat().st_ino == before


def test_a_reader_that_has_the_old_file_open_keeps_reading_it(ws: Path) -> None:
    with open_to_read(ws / "a/b/secret") as file:
        write(ws / "a/b/secret", b"new")
        assert file.read() == b"mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_file_of_a_group_that_is_not_ours_keeps_it(unprivileged_bench: Bench) -> None:
    path = unprivileged_bench.put("a", "one\n")
    path.chmod(0o664)
    os.setresuid(0, 0, 0)
    os.chown(path, 65_534, 1234)
    os.setresuid(65_534, 65_534, 0)
    unprivileged_bench.call("file_edit", path="a", old_string="one", new_string="two")
    status = path.stat()
    assert path.read_text() == "two\n"
    assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 0o664)
    assert unprivileged_bench.names() == {"a"}


# Disks that fail


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    place = tmp_path / "ws"
    place.mkdir()
    if os.getuid() or not shutil.which("mount"):
        pytest.skip("only root may mount")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts nothing")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("linked", [False, True])
def test_a_disk_that_is_full_leaves_every_file_as_it_was(small_disk: Path, tmp_path: Path, *, linked: bool) -> None:
    bench = Bench(tmp_path)
    before = b"old\n" * 20_000
    path = bench.put("a", before)
    if linked:
        (bench.ws / "b").hardlink_to(path)
    bench.call("file_read", path="a")
    there = bench.names()
    error = bench.fails("file_write", path="a", content="new!\n" * 100_000)
    assert error.kind == "resource_error"
    assert "No space left on device. Free some space" in str(error)
    assert "as it was" in str(error)
    assert path.read_bytes() == before
    assert bench.fails("file_write", path="x/y/new", content="x" * 300_000).kind == "resource_error"
    assert bench.names() == there
    assert shutil.disk_usage(small_disk).free >= 256 * 1024 - len(before) - 8_192  # nothing unnamed is left either


def test_a_read_only_disk_is_named(small_disk: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    path = bench.put("a", "one\n")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for error in (
        bench.fails("file_edit", path="a", old_string="one", new_string="two"),
        bench.fails("file_write", path="new", content="x"),
        bench.fails("file_write", path="x/new", content="x"),
    ):
        assert error.kind == "permission_denied"
        assert "is read-only: write elsewhere, or ask the user" in str(error)
    assert path.read_text() == "one\n"


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    script = (
        "import sys; from pathlib import Path; from agentcli.infra.changes.writing import write\n"
        "content = bytes(100_000_000)\nprint('ready', flush=True)\n"
        "while True: write(Path(sys.argv[1]), content); write(Path(sys.argv[1]), b'old')\n"
    )
    for pause in (0.0, 0.01, 0.02, 0.03):
        child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        assert child.stdout
        child.stdout.readline()
        time.sleep(pause)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert path.read_bytes() in (b"old", bytes(100_000_000))  # which write the kill hits is left to chance
        if hasattr(os, "O_TMPFILE"):
            assert names(tmp_path) == {"a"}


def test_nobody_else_can_read_a_file_before_it_has_its_own_mode(ws: Path) -> None:
    modes = []
    with opened_folder(ws) as folder:
        write_atomically(folder, "new", lambda new: modes.append(stat.S_IMODE(os.fstat(new).st_mode)))
    assert modes == [0o600]


def test_folders_made_for_a_file_that_cannot_be_written_go_again(ws: Path) -> None:
    with pytest.raises(OSError) as caught:
        write(ws / "x/y" / ("n" * 300), b"x")
    assert caught.value.errno == errno.ENAMETOOLONG
    assert "x" not in names(ws)
