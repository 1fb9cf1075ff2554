from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

import tests.properties  # noqa: F401  # sets how long property tests take

_AT_END = pytest.StashKey[AsyncExitStack]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines run in a loop of their own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with pyfuncitem.stash.get(_AT_END, AsyncExitStack()):
            await test(**given)

    asyncio.run(run())
    return True


@pytest.fixture
def at_end(request: pytest.FixtureRequest) -> AsyncExitStack:
    """What a coroutine of a test leaves open is closed at its end, in its loop."""
    stack = AsyncExitStack()
    request.node.stash[_AT_END] = stack
    return stack


# Of one slow test: these run each time, the others at full length only. Those of conformance compare implementations.
MAX_SLOW_CASES, MAX_SLOW_IMPLEMENTATIONS = 1, 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but some cases of a test as `full`, which leaves them to the run at full length.

    A `sampled` test keeps its count of cases; other slow tests keep one, those of conformance two.
    """
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        if is_slow or item.get_closest_marker("sampled") is not None:
            cases.setdefault((item.location[0], getattr(item, "originalname", item.name)), []).append(item)
    for found in cases.values():
        marker = found[0].get_closest_marker("sampled")
        is_conformance = found[0].location[0].startswith("tests/conformance/")
        usual = MAX_SLOW_IMPLEMENTATIONS if is_conformance else MAX_SLOW_CASES
        count = min(marker.args[0] if marker is not None else usual, len(found))
        chosen = {len(found) * number // count for number in range(count)}
        for number, item in enumerate(found):
            if number not in chosen:
                item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session", autouse=True)
def servers_are_ended() -> Iterator[None]:
    """Ends the servers that the tests of this process have started."""
    yield
    for name in ("postgres_server", "redis_server"):
        if (started := sys.modules.get(f"tests.conformance.{name}")) is not None:
            started.end()
