"""Judges a shell command as text: harmless, unknown, or a catastrophe.

A command is harmless if it provably only reads, and only inside the workspace. Everything that is not understood is
unknown. This is the second line behind the sandbox, for intent: it does not confine anything.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from agentcli.safety.commands.judge.walk import Walk
from agentcli.safety.commands.reader import second_opinion
from agentcli.safety.commands.reader.parser import read_commands
from agentcli.safety.commands.reader.syntax import (
    AndOr,
    Arithmetic,
    Background,
    Case,
    Command,
    Condition,
    For,
    Function,
    Group,
    If,
    Loop,
    Node,
    NotJudged,
    Pipeline,
    Script,
    Substitution,
    Variable,
    Word,
)
from agentcli.safety.commands.records import CommandAnalysis, Effects, Places, Segment, Verdict

MOST_SEGMENTS = 50  # nobody reads more than this before approving
LONGEST = 200_000  # characters read in full, in 20 ms
_MOST_WINDOWS = 300
_WINDOW = 300


def analyse(command: str, *, places: Places) -> CommandAnalysis:
    """Judge a command by its text. Never raises."""
    hidden = hidden_character(command)
    text = _as_bash_reads(command) if hidden else command
    if len(text) > LONGEST:
        return _of_too_long(text, places)
    reading = read_commands(text)
    walk = Walk(places)
    walk.run(reading.script)
    problem = hidden or reading.problem or walk.problem
    if reading.problem and not reading.is_refused:
        _search_broken(text, reading.problem, walk)
    for script in walk.unread:
        _search_broken(script, "a script inside it is not understood", walk)
    if walk.gave_up:
        _search(_windows(text), walk)
    if walk.commands_seen > MOST_SEGMENTS:
        problem = problem or f"it has more than {MOST_SEGMENTS} commands"
    if not problem and not _readers_agree(text, reading.script):
        problem = "its syntax can be read in more than one way"
    return _conclusion(walk, problem)


def _conclusion(walk: Walk, problem: str) -> CommandAnalysis:
    segments = tuple(walk.segments)
    effects = Effects()
    for segment in segments:
        effects = effects | segment.effects
    worst: Verdict = "harmless"
    reason = "it only reads inside the workspace"
    for segment in segments:
        if segment.verdict == "catastrophic" or (segment.verdict == "unknown" and worst == "harmless"):
            worst, reason = segment.verdict, segment.reason
        if worst == "catastrophic":
            break
    if walk.catastrophe and worst != "catastrophic":
        worst, reason = "catastrophic", walk.catastrophe
    if problem and worst == "harmless":
        worst, reason = "unknown", problem
    return CommandAnalysis(
        segments, worst, reason, effects, problem, walk.hidden, walk.hidden_catastrophe, walk.unreadable
    )


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


def _of_too_long(text: str, places: Places) -> CommandAnalysis:
    walk = Walk(places)
    _search(_windows(_without_here_texts(text)), walk)
    segment = Segment(text[:200] + "…", None, "unknown", "the command is too long to be judged")
    walk.unreadable = segment.reason
    walk.segments = [*(each for each in walk.segments if each.verdict == "catastrophic"), segment]
    return _conclusion(walk, "the command is too long to be judged")


_SUSPICIOUS = re.compile(
    r"\b(?:rm|mv|chmod|chown|chgrp|find|rsync)\b[^\n;&|]{0,80}?[\s\"'](?:[/~]|\$\{?HOME)|\b(?:mkfs|wipefs|blkdiscard)\b"
    r"|/dev/(?:s|h|v|xv)d|/dev/(?:nvme|mmcblk|disk|tcp|udp)|sysrq|\bkill\s+-|\(\)\s*\{|\b(?:nc|ncat|netcat|socat)\s"
)


_HERE_TEXT = re.compile(r"<<-?[ \t]*(['\"])(\w+)\1[^\n]*\n")


def _without_here_texts(text: str) -> str:
    """The text without here-documents that do not expand; those are data."""
    kept, at = [], 0
    while found := _HERE_TEXT.search(text, at):
        ending = re.compile(rf"^\t*{found[2]}$", re.MULTILINE).search(text, found.end())
        if ending is None:
            break
        kept.append(text[at : found.end()])
        at = ending.end()
    return "".join((*kept, text[at:]))


def _windows(text: str) -> Iterator[str]:
    """The lines of a long text that could hold a catastrophe, cut to a size that can be read."""
    end = 0
    for _ in range(_MOST_WINDOWS):
        found = _SUSPICIOUS.search(text, end)
        if found is None:
            return
        start = max(text.rfind(mark, max(0, found.start() - _WINDOW), found.start()) for mark in "\n;&|")
        newline = text.find("\n", found.end(), found.end() + _WINDOW)
        end = newline if newline >= 0 else min(found.end() + _WINDOW, len(text))
        yield text[start + 1 : end]


def _search(texts: Iterable[str], walk: Walk) -> None:
    """Look for catastrophes in parts of a command that is not understood as a whole. Stops at the first."""
    for text in texts:
        part = Walk(walk.places)
        part.run(read_commands(text).script)
        walk.catastrophe = walk.catastrophe or part.catastrophe
        walk.segments += (each for each in part.segments if each.verdict == "catastrophic")
        if walk.catastrophe or walk.has_catastrophe:
            return


def _search_broken(text: str, why: str, walk: Walk) -> None:
    """Search a text that our reader cannot follow. Rules can refuse its commands, but not grant them."""
    for part_text in second_opinion.simple_commands(text, _MOST_WINDOWS):
        part = Walk(walk.places)
        reading = read_commands(part_text)
        part.run(reading.script)
        walk.catastrophe = walk.catastrophe or part.catastrophe
        walk.hidden = walk.hidden | part.hidden
        walk.hidden_catastrophe = walk.hidden_catastrophe or part.hidden_catastrophe
        walk.unreadable = walk.unreadable or part.unreadable or (why if reading.problem else "")
        walk.segments += (
            each
            if each.verdict == "catastrophic"
            else Segment(each.text, each.words, "unknown", why, each.effects, (), each.deny_forms)
            for each in part.segments
        )


def _readers_agree(text: str, script: Script) -> bool:
    """True if tree-sitter finds the same programs. It is not asked about plain words and blanks."""
    if re.fullmatch(r"[\w./:=,@%+ -]*", text) and not text.lstrip().startswith(("time", "coproc")):
        return True
    return second_opinion.program_words(text) == Counter(_program_words(script))


def _program_words(node: Node | Word) -> Iterator[str]:
    match node:
        case Command():
            if node.words:
                yield node.words[0].text
            parts: list[Node | Word] = [*node.words]
            parts += [given.value for given in node.assignments if given.value is not None]
            parts += [redirect.target for redirect in node.redirects]
        case Word():
            parts = [inner for piece in node.pieces for inner in _inside(piece)]
        case Pipeline():
            parts = [*node.parts]
        case AndOr():
            parts = [node.left, node.right]
        case Script():
            parts = [*node.items]
        case Background():
            parts = [node.node]
        case Group():
            parts = [node.body, *(redirect.target for redirect in node.redirects)]
        case If():
            parts = [script for branch in node.branches for script in branch]
        case Loop():
            parts = [node.condition, node.body]
        case For():
            parts = [*(node.words or ()), node.body]
        case Case():
            parts = [node.subject, *node.patterns, *node.arms]
        case Function():
            parts = [node.body]
        case Condition():
            yield "[["
            parts = [*node.words]
        case NotJudged():
            parts = [*node.words, *node.inside]
    for part in parts:
        yield from _program_words(part)


def _inside(piece: object) -> Iterator[Node | Word]:
    match piece:
        case Substitution():
            yield piece.script
        case Variable() if piece.argument is not None:
            yield piece.argument
        case Arithmetic():
            for each in piece.pieces:
                yield from _inside(each)
