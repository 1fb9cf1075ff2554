"""Judges shell commands before they run: what they touch, whether they only read, which rules cover them.

`reader` makes simple commands of a text, `programs` knows the programs, `judge` makes a verdict with reasons of both.
`records` are what goes in and out, `rules` matches permission rules. Nothing here runs a command or looks at a disk.
"""

from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places, Segment, Verdict
from agentcli.safety.commands.rules import covers, rules_by_segment, touches


def analyse(command: str, *, places: Places) -> CommandAnalysis:
    """Judge a command by its text. Never raises. The first call imports the judge, which takes 10 ms."""
    from agentcli.safety.commands.judge.analysis import analyse

    return analyse(command, places=places)


__all__ = [
    "UNKNOWN",
    "CommandAnalysis",
    "Effects",
    "Places",
    "Segment",
    "Verdict",
    "analyse",
    "covers",
    "rules_by_segment",
    "touches",
]
