from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tools.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    asyncio.run(bench.sandbox.aclose())


@pytest.fixture
def unprivileged_bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench for which file modes count: as root, root's rights are laid down for the length of a test."""
    if os.getuid() != 0:
        yield Bench(tmp_path)
        return
    folder = Path(tempfile.mkdtemp())
    bench = Bench(folder)
    for path in (folder, bench.ws):
        os.chown(path, 65_534, 65_534)
    os.setresgid(65_534, 65_534, 0)
    os.setresuid(65_534, 65_534, 0)
    try:
        yield bench
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        shutil.rmtree(folder)
