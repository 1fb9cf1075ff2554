"""Days on which something is repeated."""

from collections.abc import Iterator
from datetime import date, timedelta


def monthly(start: date, count: int, every: int = 1) -> list[date]:
    """`count` days, from `start` on, every so many months.

    All fall on the day of the month of `start`; in a month that has no such day, on its last one (31 January, 28
    February, 31 March).
    """
    days, day = [], start
    for _ in range(count):
        days.append(day)
        month = day.month + every
        year = day.year + month // 12
        month = month % 12
        day = date(year, month, min(day.day, 28))
    return days


def weekly(start: date, until: date, weekdays: set[int]) -> Iterator[date]:
    """The days from `start` to `until`, both included, that fall on one of the weekdays (0 is Monday).

    Without any weekday: every seventh day from `start` on.
    """
    day = start
    while day < until:
        if day.isoweekday() in weekdays:
            yield day
        day += timedelta(days=1)


def nth_weekday(year: int, month: int, weekday: int, nth: int) -> date | None:
    """The nth such weekday of a month (0 is Monday): 1 is the first, -1 the last, -2 the one before it.

    None if the month has not so many; nth == 0 raises ValueError.
    """
    first = date(year, month, 1)
    day = first + timedelta(days=(weekday - first.weekday()) % 7)
    day += timedelta(weeks=nth - 1)
    return day
