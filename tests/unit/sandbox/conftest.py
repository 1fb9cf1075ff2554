from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Confinement
from tests.conformance.confining import confinement_for, folder_on_disk
from tests.unit.tools.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    asyncio.run(bench.sandbox.aclose())


@pytest.fixture
def bubblewrap() -> Confinement:
    return confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")[0]


@pytest.fixture
def base() -> Iterator[Path]:
    with folder_on_disk() as folder:
        yield folder
