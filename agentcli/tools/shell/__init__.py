"""Judges shell commands before they run: what they touch, whether they only read, which rules speak of them."""

from agentcli.tools.shell.judge import analyse
from agentcli.tools.shell.records import UNKNOWN, CommandAnalysis, Effects, Places, Segment, Verdict
from agentcli.tools.shell.rules import covers, least_rules, rules_by_segment, touches

__all__ = [
    "UNKNOWN",
    "CommandAnalysis",
    "Effects",
    "Places",
    "Segment",
    "Verdict",
    "analyse",
    "covers",
    "least_rules",
    "rules_by_segment",
    "touches",
]
