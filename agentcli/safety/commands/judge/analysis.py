"""Judges a shell command as text: block, ask, allow, or try where its text does not tell.

This is the second line behind the sandbox, for intent: it does not confine anything.
"""

from __future__ import annotations

import re
import unicodedata

from msgspec.structs import replace

from agentcli.safety.commands.judge.walk import Around, Walk
from agentcli.safety.commands.programs.effects import UNKNOWN_EFFECTS
from agentcli.safety.commands.reader.syntax import State
from agentcli.safety.commands.records import CommandAnalysis, Effects, Places, Segment, Verdict

MOST_SEGMENTS = 50  # nobody reads more than this before approving
LONGEST = 1_000_000  # characters


def analyse(command: str, *, places: Places) -> CommandAnalysis:
    """Judge a command by its text. Never raises."""
    hidden = hidden_character(command)
    text = _as_bash_reads(command) if hidden else command
    if len(text) > LONGEST:
        why = "the command is too long to be judged"
        segment = Segment(text[:200] + "…", None, "ask", why)
        return CommandAnalysis((segment,), "ask", why, UNKNOWN_EFFECTS, why, unreadable=why, unjudged=why)
    scratch = _scratch_files(text)
    walk = Walk(replace(places, is_readable=lambda path: str(path) in scratch or places.is_readable(path)))
    cwd, home = str(places.cwd), str(places.home)
    try:
        if _CHANGES_HOME.search(text):
            walk.run(text, State((cwd,), None, cwd), Around())
            walk.add_worse(text, State((cwd,), home, cwd))  # where the home is used it may not have changed yet
        else:
            walk.run(text, State((cwd,), home, cwd), Around())
    except RecursionError:
        walk.problem = walk.unreadable = walk.unjudged = "it is nested too deeply"
    problem = walk.problem
    if walk.commands > MOST_SEGMENTS:
        problem = problem or f"it has more than {MOST_SEGMENTS} commands"
    return replace(_conclusion(walk, hidden, problem, text), scratch=scratch, unjudged=walk.unjudged)


_CHANGES_HOME = re.compile(
    r"\bHOME\+?=|\b(?:read|unset|export|declare|typeset|local|readonly|printf|mapfile|readarray|getopts|for|select)\b"
    r"[^\n;&|]*(?<![$\w{])HOME\b"
)
# A file of /tmp that the command makes and then names again, so that it needs no other /tmp than its own.
_MADE = re.compile(r"(?:>\s*|\s-o\s+|\btee\s+)(/tmp/\w[\w.-]*)(?![\w./*?\[{$-])")
_SECRET_VARIABLE = re.compile(r"\$\{?[#!]?\w*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL)", re.ASCII)
_RANKS: dict[Verdict, int] = {"allow": 0, "try": 1, "ask": 2, "block": 3}


def _scratch_files(text: str) -> tuple[str, ...]:
    found = []
    for made in _MADE.finditer(text):
        again = re.compile(rf"(?<![^\s;&|(<>]){re.escape(made[1])}(?![^\s;&|)<>])")
        if made[1] not in text[: made.start(1)] and again.search(text, made.end()):
            found.append(made[1])
    return tuple(found)


def _conclusion(walk: Walk, hidden: str, problem: str, text: str) -> CommandAnalysis:
    """The worst of the segments; of two that are alike the first gives the reason."""
    effects = Effects()
    worst: Verdict = "allow"
    reason = "it only reads inside the workspace"
    for segment in walk.segments:
        effects = effects | segment.effects
        if _RANKS[segment.verdict] > _RANKS[worst]:
            worst, reason = segment.verdict, segment.reason
    more: list[tuple[Verdict, str]] = [("block", walk.catastrophe), ("ask", hidden), ("try", problem)]
    if problem and _SECRET_VARIABLE.search(text):
        more.append(("ask", "it may show a variable that holds a secret"))
    for verdict, why in more:
        if why and _RANKS[verdict] > _RANKS[worst]:
            worst, reason = verdict, why
    if problem:
        first = [segment.text.split()[:1] for segment in walk.segments if segment.verdict != "allow"]
        programs = tuple(word for words in first for word in words if re.fullmatch(r"[\w./-]+", word))
        effects = effects | replace(UNKNOWN_EFFECTS, runs=programs or UNKNOWN_EFFECTS.runs)
    return CommandAnalysis(
        tuple(walk.segments), worst, reason, effects, hidden or problem, walk.hidden, walk.hidden_catastrophe,
        walk.unreadable, walk.deletes_unseen if problem else "",
    )  # fmt: skip


# Characters that are invisible, or that other readers take for a blank or a line end. To bash all of them are letters,
# except the tab and the newline.
_PLAIN = re.compile(r"[\t\n -~]*")


def hidden_character(text: str) -> str:
    """The problem with the characters of a text, or an empty string."""
    if _PLAIN.fullmatch(text):
        return ""
    for char in set(text):
        if char in "\t\n":
            continue
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (char.isspace() and char != " "):
            return f"it holds a character that is not shown as it is (U+{ord(char):04X})"
    return ""


def _as_bash_reads(text: str) -> str:
    """Replace characters that only bash takes for letters by a letter, so that every reader sees one."""
    return "".join(
        "\ufffd" if char not in "\t\n " and (not char.isprintable() or char.isspace()) else char for char in text
    )
