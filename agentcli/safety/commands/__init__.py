"""Judges shell commands before they run: what they touch, whether they only read, which rules cover them.

`reader` makes simple commands of a text, `programs` knows the programs, `judge` makes a verdict with reasons of both.
`records` are what goes in and out, `rules` matches permission rules. Nothing here runs a command or looks at a disk.
"""

from importlib import import_module

from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places, Segment, Verdict
from agentcli.safety.commands.rules import covers, rules_by_segment, touches


def analyse(command: str, *, places: Places) -> CommandAnalysis:
    """Judge a command by its text. Never raises. The first call imports the judge, which takes 10 ms."""
    found: CommandAnalysis = import_module("agentcli.safety.commands.judge.analysis").analyse(command, places=places)
    return found


def refusal_of(text: str) -> str:
    """The syntax error for which bash would run nothing of `text`; empty if there is none, or none for certain."""
    refusal: str = import_module("agentcli.safety.commands.reader.commands").read_commands(text).refusal
    return refusal


__all__ = [
    "UNKNOWN",
    "CommandAnalysis",
    "Effects",
    "Places",
    "Segment",
    "Verdict",
    "analyse",
    "covers",
    "refusal_of",
    "rules_by_segment",
    "touches",
]
