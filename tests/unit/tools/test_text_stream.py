"""Files of any size read in pieces: the same lines, encoding and hash as of the whole, in constant memory."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.tools.builtin.file_read import LineRange, read_lines
from agentcli.tools.text.encoding import decode, without_surrogates
from tests.properties import examples
from tests.unit.tools.bench import Bench

_TEXTS = st.text("aé文😀 \n\r\t", max_size=60).flatmap(
    lambda text: st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]).map(text.encode)
)
_BYTES = st.lists(st.sampled_from([*b"ab \r\n", *"é文😀".encode(), 0x81, 0x93, 0xE9, 0xFF]), max_size=40).map(bytes)


class Pieces(io.BytesIO):
    """A file that gives a few bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content)
        self._size = size

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self._size if size is not None and size > 0 else size)


@examples(500)
@given(_TEXTS | _BYTES, st.integers(1, 5), st.integers(1, 4) | st.just(10**6), st.integers(4, 20), st.integers(1, 9))
def test_lines_read_in_pieces_are_those_of_the_whole(
    content: bytes, first: int, most: int, head: int, size: int
) -> None:
    decoded = decode(content)
    choice = LineRange(first=first, max_lines=most, max_bytes=10**9, max_line_bytes=10**9)
    read = read_lines(content[:head], Pieces(content[head:], size), choice, "")
    if decoded is None:
        assert read is None
        return
    assert read is not None
    lines = decoded.text.split("\n")
    total = len(lines) - (lines[-1] == "")
    assert (read.total_lines, read.encoding) == (total, decoded.encoding)
    assert read.digest == hashlib.sha256(content).digest()
    assert read.ends_with_newline == (not decoded.text or decoded.text.endswith("\n"))
    end = min(first - 1 + most, total)
    assert [line.text for line in read.lines] == [without_surrogates(line) for line in lines[first - 1 : end]]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
@pytest.mark.parametrize("size", [65_535, 65_536, 1_048_577])
def test_the_end_of_a_file_longer_than_a_piece_is_whole(bench: Bench, encoding: str, size: int) -> None:
    text = "aé\r\n" * (size // 4) + "last é"
    bench.put("a", text.encode(encoding))
    output = bench.call("file_read", path="a", offset=size // 8, limit=0)
    assert output.structured["text"] == text.split("\n", size // 8 - 1)[-1]
    assert output.structured["total_lines"] == text.count("\n") + 1
    bench.call("file_write", path="a", content=f"it was read to its last byte\n{text}")


# The peak of memory is that of a whole process, so each measurement has one of its own.
READ = """
import resource, sys
from pathlib import Path
from tests.unit.tools.bench import Bench
bench = Bench(Path(sys.argv[1]))
bench.put("small", "x\\n" * 10)
bench.call("file_read", path="small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(bench.text("file_read", path="large", offset=int(sys.argv[2]), limit=2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_a_line_far_down_a_large_file_is_read_in_constant_memory(bench: Bench, encoding: str) -> None:
    line = "é" + "x" * 190
    with bench.put("large").open("w", encoding=encoding, newline="\n") as file:
        for _ in range(100):
            file.write(f"{line}\n" * 10_000)
    command = [sys.executable, "-c", READ, str(bench.folder), "900001"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, cwd=Path(__file__).parents[3])
    *shown_lines, kilobytes = ran.stdout.splitlines()
    assert shown_lines[:3] == [
        f"900001\t{line}",
        f"900002\t{line}",
        "[lines 900001-900002 of 1000000; continue with offset=900003]",
    ]
    assert int(kilobytes) < 24_000


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\n"], ids=["one line", "empty lines"])
def test_neither_one_endless_line_nor_endless_lines_take_memory(bench: Bench, content: bytes) -> None:
    with bench.put("large").open("wb") as file:
        for _ in range(200):
            file.write((content or b"x") * 1_000_000)
    command = [sys.executable, "-c", READ, str(bench.folder), "150000000" if content else "1"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, cwd=Path(__file__).parents[3])
    assert int(ran.stdout.splitlines()[-1]) < 24_000
