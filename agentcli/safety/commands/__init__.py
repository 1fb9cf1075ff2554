"""Judges shell commands before they run: what they touch, whether they only read, which rules speak of them."""

from importlib import import_module

from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places, Segment, Verdict
from agentcli.safety.commands.rules import covers, rules_by_segment, touches


def analyse(command: str, *, places: Places) -> CommandAnalysis:
    """What a command would do. Never raises, whatever the text; the first call takes 20 ms to import the judge."""
    found: CommandAnalysis = import_module("agentcli.safety.commands.judge.analysis").analyse(command, places=places)
    return found


def refusal_of(text: str) -> str:
    """Why bash would run nothing of a text: its syntax error; empty where it would, or where that cannot be told."""
    reading = import_module("agentcli.safety.commands.reader.parser").read_commands(text)
    return reading.problem if reading.is_refused and not reading.script.items else ""


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
