"""What ripgrep prints is read the same however it is cut into pieces, and takes no more room than is shown."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcli.infra.sandbox.ripgrep import CountReader, NameReader, Reader, RowReader, stream_output
from agentcli.tools.builtin.grep_search import FoundLine, Matches
from agentcli.tools.sandbox import FoundRows, find_rg, names_in
from tests.unit.tools.bench import is_alive, until

LATE_NUL = b"needle\n" + b"filler\n" * 20_000 + b"\0needle\n"
FILES = {
    b"plain": b"needle\nno\n\nneedle 2\n",
    b"1:digit": b"needle\n",
    b"line\nend": b"needle\nneedle\n",
    b"empty\n\nline": b"no\nneedle\n",
    b"\n./odd": b"needle\n",
    b"late": LATE_NUL,
    b"late\nof two": LATE_NUL,
    b"late\n\nof three": LATE_NUL,
    b"latin\xe9": b"needle \xe9\r\n",
    b"sub/last": b"12:needle\n./needle\nneedle",
}
SHARED = ["--no-config", "-j1", "needle", "./"]
ROWS = ["--heading", "--null", "-nH"]
READERS: dict[str, tuple[Callable[[Any], Reader], list[str]]] = {
    "rows": (RowReader, ROWS),
    "context": (RowReader, [*ROWS, "-C2", "--no-context-separator"]),
    "counts": (CountReader, ["--count", "--null", "-H"]),
    "names": (NameReader, ["-l", "--null"]),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    return tmp_path


def collected(found: list[Any]) -> dict[Any, bytes]:
    """The rows of each file, its parts put together."""
    files: dict[Any, bytes] = {}
    for entry in found:
        for path, rows in [entry] if isinstance(entry, tuple) else [(name, b"") for name in names_in(entry)]:
            files[path] = files[path] + b"\n" + rows if path in files else rows
    return files


@pytest.mark.parametrize("kind", list(READERS))
def test_pieces_of_any_size_say_the_same(tree: Path, kind: str) -> None:
    options = READERS[kind][1]
    output = subprocess.run([find_rg(), *options, *SHARED], cwd=tree, capture_output=True, check=True).stdout
    expected, binary = in_pieces(kind, output, len(output))
    assert len(expected) == len(FILES) - (3 if kind == "counts" else 0)  # it does not count what turns out binary
    assert binary == ({name for name in FILES if name.startswith(b"late")} if kind in ("rows", "context") else set())
    if kind == "rows":
        assert expected[b"empty\n\nline"] == b"2:needle"
        assert expected[b"late\n\nof three"] == b"1:needle"
        assert expected[b"sub/last"] == b"1:12:needle\n2:./needle\n3:needle"
    for size in sizes(output):
        assert in_pieces(kind, output, size) == (expected, binary), size


@pytest.mark.parametrize("kind", ["rows", "context"])
def test_pieces_without_a_word_on_binary_files_say_the_same(tree: Path, kind: str) -> None:
    for path in tree.rglob("late*"):
        path.unlink()
    output = subprocess.run([find_rg(), *READERS[kind][1], *SHARED], cwd=tree, capture_output=True, check=True).stdout
    expected, binary = in_pieces(kind, output, len(output))
    assert not binary
    assert expected.keys() == {name for name in FILES if not name.startswith(b"late")}
    for size in sizes(output):
        assert in_pieces(kind, output, size) == (expected, set()), size


def in_pieces(kind: str, output: bytes, size: int) -> tuple[dict[Any, bytes], set[bytes]]:
    found: list[Any] = []
    reader = READERS[kind][0](found.append if kind == "names" else found.extend)
    for start in range(0, len(output), size):
        reader.feed(output[start : start + size])
    reader.end()
    return collected(found), reader.binary


def sizes(output: bytes) -> list[int]:
    dice = random.Random(1)
    return [*range(1, 40), *(dice.randint(40, len(output)) for _ in range(40))]


def rows_of(files: int, rows: int) -> list[FoundRows]:
    text = b"\n".join(b"%d:a match in a line" % n for n in range(1, rows + 1))
    return [(b"folder/file%05d" % n, text) for n in range(files)]


def test_of_a_million_matches_only_the_shown_take_room() -> None:
    found = rows_of(files=1, rows=10_000)
    first = Matches(100, context=0, show=bytes.decode)
    tracemalloc.start()
    for n in random.Random(3).sample(range(100), 100):
        first.add([(b"folder/file%05d" % n, found[0][1])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    collected = first.first_matches()
    assert (first.total, first.files, collected.left_out) == (1_000_000, 100, 999_900)
    assert collected.entries()[-1] == FoundLine("folder/file00000", 100, "a match in a line")
    assert peak < 1_000_000


@pytest.mark.parametrize("most", [1, 7, 30, 64, 1_000])
def test_the_first_matches_are_those_of_all_in_whatever_order_files_come(most: int) -> None:
    dice = random.Random(most)
    found = [(path, rows) for n in range(12) for path, rows in rows_of(n, dice.randint(1, 9))[-1:]]
    everything = Matches(0, context=0, show=bytes.decode)
    everything.add(found)
    for _ in range(20):
        first = Matches(most, context=0, show=bytes.decode)
        first.add(dice.sample(found, len(found)))
        assert first.first_matches().entries() == everything.first_matches().entries()[:most]
        assert first.total == everything.total


SHELL = "/bin/sh"


async def pid_written(to: Path) -> int:
    assert await until(lambda: to.exists() and to.read_text().endswith("\n"))
    return int(to.read_text())


async def test_a_cancelled_call_ends_the_program(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; echo found; exec sleep 60"
    heard: list[bytes] = []
    call = asyncio.ensure_future(
        stream_output([SHELL, "-c", script], cwd=tmp_path, environment=os.environ, take=heard.append, time_limit_s=50)
    )
    pid = await pid_written(tmp_path / "pid")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not Path(f"/proc/{pid}").exists()  # not even as a zombie


async def test_when_the_time_is_up_what_was_printed_is_there(tmp_path: Path) -> None:
    heard: list[bytes] = []
    script = "echo found; echo said >&2; exec sleep 60"
    ended = await stream_output(
        [SHELL, "-c", script], cwd=tmp_path, environment=os.environ, take=heard.append, time_limit_s=0.3
    )
    assert (b"".join(heard), ended.errors, ended.timed_out, ended.exit_code) == (b"found\n", b"said\n", True, -9)


async def test_an_error_while_the_output_is_read_ends_the_program(tmp_path: Path) -> None:
    def take(piece: bytes) -> None:
        raise RuntimeError("no")

    script = f"echo $$ > {tmp_path}/pid; yes | head -c 1000000; exec sleep 60"
    with pytest.raises(RuntimeError, match="no"):
        await stream_output([SHELL, "-c", script], cwd=tmp_path, environment=os.environ, take=take, time_limit_s=50)
    assert not is_alive(await pid_written(tmp_path / "pid"))


async def test_the_loop_continues_while_a_program_prints(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    script = "yes | head -c 3000000; sleep 0.3"
    await stream_output(
        [SHELL, "-c", script], cwd=tmp_path, environment=os.environ, take=lambda piece: None, time_limit_s=50
    )
    ticking.cancel()
    assert ticks > 5
