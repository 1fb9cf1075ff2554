from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import postgres_server


@pytest.fixture(scope="session", autouse=True)
def servers_are_ended() -> Iterator[None]:
    yield
    postgres_server.end()
