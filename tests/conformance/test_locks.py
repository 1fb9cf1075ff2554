"""Locks have one holder at a time, are fair, and are released whatever happens to their holder."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcli.agent.interfaces import Locks
from agentcli.errors import ToolError
from agentcli.infra.shared import FileLocks


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return FileLocks(tmp_path / "locks")


async def test_one_name_is_held_by_one_at_a_time_in_order(locks: Locks) -> None:
    order: list[str] = []

    async def use(name: str) -> None:
        async with locks.held(("a",), timeout_s=5):
            order.append(f"+{name}")
            await asyncio.sleep(0.002)
            order.append(f"-{name}")

    await asyncio.gather(*(use(str(n)) for n in range(5)))
    assert order == [f"{sign}{n}" for n in range(5) for sign in "+-"]


async def test_several_names_in_any_order_never_wait_for_each_other(locks: Locks) -> None:
    async def use(*names: str) -> None:
        for _ in range(20):
            async with locks.held(tuple(sorted(names)), timeout_s=5):
                await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await asyncio.gather(use("a", "b"), use("b", "a"), use("c", "a"), use("b", "c"))


async def test_a_lock_that_is_not_free_in_time_is_a_resource_error(locks: Locks) -> None:
    async with locks.held(("/ws/a",), timeout_s=5), locks.held(("another",), timeout_s=0.05):
        with pytest.raises(ToolError) as caught:
            async with locks.held(("/ws/a",), timeout_s=0.03):
                pass
    assert caught.value.kind == "resource_error"
    async with locks.held(("/ws/a",), timeout_s=0.03):
        pass


async def test_without_names_nothing_is_locked_or_written(tmp_path: Path) -> None:
    """As for a call that changes no file, which also works where the state folder cannot be made."""
    (tmp_path / "a_file").touch()
    async with FileLocks(tmp_path / "a_file" / "locks").held((), timeout_s=1):
        pass


async def test_an_error_or_a_cancelled_holder_gives_the_lock_back(locks: Locks) -> None:
    with pytest.raises(ZeroDivisionError):
        async with locks.held(("a",), timeout_s=1):
            _ = 1 / 0

    async def hold() -> None:
        async with locks.held(("a",), timeout_s=1):
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    waiting.cancel()
    task.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
    async with locks.held(("a",), timeout_s=0.05):
        pass


async def test_another_process_waits_and_one_that_dies_gives_way(tmp_path: Path) -> None:
    holder = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from agentcli.infra.shared import FileLocks\n"
        "async def hold():\n"
        "    async with FileLocks(Path(sys.argv[1])).held(('/ws/a',), timeout_s=5):\n"
        "        print('held', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(hold())\n"
    )
    folder = tmp_path / "locks"
    other = subprocess.Popen([sys.executable, "-c", holder, str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        locks: Locks = FileLocks(folder)
        with pytest.raises(ToolError):
            async with locks.held(("/ws/a",), timeout_s=0.05):
                pass
        other.kill()
        started = time.monotonic()
        async with locks.held(("/ws/a",), timeout_s=60):
            assert time.monotonic() - started < 30
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_the_first_lock_imports_nothing(tmp_path: Path) -> None:
    """An import would delay the first edit, and every frame that is drawn meanwhile."""
    first_lock = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from agentcli.infra.shared import FileLocks\n"
        "async def hold():\n"
        "    before = set(sys.modules)\n"
        "    async with FileLocks(Path(sys.argv[1])).held(('/ws/a',), timeout_s=5):\n"
        "        print(*sys.modules.keys() - before)\n"
        "asyncio.run(hold())\n"
    )
    answer = subprocess.run([sys.executable, "-c", first_lock, str(tmp_path)], capture_output=True, check=True)
    assert answer.stdout == b"\n"
