"""Reads and writes durations such as 1h30m."""

import re

UNITS = {"h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+)([hms])")


def parse(text):
    """The seconds of a duration. Raises ValueError for anything else."""
    if not re.fullmatch(r"(?:\d+[hms])+", text):
        raise ValueError(f"not a duration: {text!r}")
    return sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))


def format_seconds(seconds):
    """A duration in hours, minutes and seconds; parts that are zero are left out, 0 is 0s."""
    parts = []
    for unit, size in UNITS.items():
        number, seconds = divmod(seconds, size)
        if number > 1:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"
