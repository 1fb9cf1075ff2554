"""Writes a plan as text."""

from planner.intervals import Interval
from planner.wrapping import wrap


def report(version: str, windows: list[Interval], remark: str) -> str:
    lines = [f"Release {version}", *(f"  {start:>4} to {end:>4}" for start, end in windows)]
    return "\n".join([*lines, *wrap(remark, 40, indent="  ")])
