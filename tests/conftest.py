from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator

import pytest

import tests.properties  # noqa: F401  # sets how long property tests take


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines run in a loop of their own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


@pytest.fixture(scope="session", autouse=True)
def servers_are_ended() -> Iterator[None]:
    """Ends the servers that the tests of this process have started."""
    yield
    for name in ("postgres_server", "redis_server"):
        if (started := sys.modules.get(f"tests.conformance.{name}")) is not None:
            started.end()
