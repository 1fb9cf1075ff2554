"""Runs a table of cases as one test. A table of hundreds costs more as a test for each row than the rows do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def each_row(names: str, table: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but all rows run in one test, which tells each that fails."""
    columns = [name.strip() for name in names.split(",")]
    values = [(row,) if len(columns) == 1 else tuple(row) for row in table]
    assert values, "a table without rows proves nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def test_each(**others: Any) -> None:
            failures = []
            for row in values:
                try:
                    test(**dict(zip(columns, row, strict=True)), **others)
                except Exception as failure:
                    failure.add_note(f"in the row {row!r}"[:2000])
                    failures.append(failure)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(values)} rows fail", failures)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        test_each.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test_each

    return decorate
