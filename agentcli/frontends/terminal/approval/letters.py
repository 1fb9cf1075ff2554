"""Tells a letter that answers a question from the first letter of a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

KEY_ALONE_S = 0.3  # a letter is an answer once nothing has followed it for so long


class Letters:
    """Letters typed at an approval; `alone` is called with the last one when no other follows.

    Early letters were typed before anybody could have read the question: they belong to the answer before it.
    """

    def __init__(self, alone: Callable[[str, bool], None]) -> None:
        self._alone = alone
        self._timer: asyncio.TimerHandle | None = None
        self._typed = ""
        self._are_early = False

    def __bool__(self) -> bool:
        return bool(self._typed)

    def wait(self, letters: str, *, are_early: bool) -> None:
        """Hold letters until it shows whether more follow."""
        self._typed, self._are_early = letters, are_early
        self._timer = asyncio.get_running_loop().call_later(KEY_ALONE_S, self.end)

    def drop(self) -> tuple[str, bool]:
        """Take the letters away; gives them, and whether they were early."""
        held = self._typed, self._are_early
        self._typed, self._are_early = "", False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def end(self) -> None:
        letters, are_early = self.drop()
        self._alone(letters[-1:], are_early)
