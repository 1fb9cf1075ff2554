"""Builds requests of long conversations beside the event loop, so that a key never waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LARGE = 300  # messages or entries; below, going to a thread and back costs more than the work


async def off_thread_if_large(size: int, build: Callable[[], T]) -> T:
    """What `build` gives, from a thread where `size` is large. It must not change anything."""
    return build() if size < LARGE else await asyncio.to_thread(build)
