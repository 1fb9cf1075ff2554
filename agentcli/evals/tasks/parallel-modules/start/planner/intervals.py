"""Sets of half-open intervals of whole minutes: (start, end) holds start, but not end."""

Interval = tuple[int, int]


def merge(intervals: list[Interval]) -> list[Interval]:
    """The same minutes as few intervals as possible, in order.

    Intervals that overlap or touch become one; empty ones (start == end) are left out. The list that is given stays as
    it is. One that ends before it starts raises ValueError.
    """
    merged: list[Interval] = []
    intervals.sort()
    for start, end in intervals:
        if end < start:
            raise ValueError(f"{start} to {end} ends before it starts")
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def subtract(intervals: list[Interval], taken: list[Interval]) -> list[Interval]:
    """The minutes of `intervals` that are not in `taken`, merged."""
    left = merge(intervals)
    for start, end in taken:
        cut: list[Interval] = []
        for first, last in left:
            if end <= first or last <= start:
                cut.append((first, last))
            elif start > first:
                cut.append((first, start))
            elif end < last:
                cut.append((end, last))
        left = cut
    return left


def first_gap(taken: list[Interval], length: int, start: int, end: int) -> Interval | None:
    """The earliest interval of `length` minutes within (start, end) that has none of `taken`; None if there is none."""
    for first, last in subtract([(start, end)], taken):
        if last - first > length:
            return first, last
    return None
