"""Makes a session's sandbox and snapshots only when they are first used, because each import takes 20 ms."""

from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """A proxy for an object that is made when it is first used."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = Lock()

    def is_made(self) -> bool:
        return self._made is not None

    def load(self) -> T:
        """Return the object. A thread may call this in advance, while the model writes its first call."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)

    async def aclose(self) -> None:
        if (loaded := self._made) is not None:
            await loaded.aclose()  # type: ignore[attr-defined]
