"""Finds lines of instruction files that permission rules can hold: "use uv, not pip", "never edit vendor/".

A few clear patterns of English, no model: a line with a condition, or with a word that is not understood, is no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from agentcli.agent.permissions.listed_rules import (
    AND,
    PROGRAMS,
    Ground,
    command_rules,
    listed_commands,
    listed_paths,
    path_rule,
)

MOST_QUOTED = 160  # characters of a line


class Found(Struct, frozen=True):
    """The rules that a line can become, as they are written; `quote` names the file and cites the line."""

    verb: Literal["ask", "deny"]
    rules: tuple[str, ...]
    quote: str


def find_rules(files: Mapping[str, str], root: Path) -> list[Found]:
    """What the texts of instruction files, by path, say of the project at `root`; each rule once."""
    found: dict[tuple[str, ...], Found] = {}
    for path, text in files.items():
        file = Path(path)
        is_own = file.is_relative_to(root)
        name, folder = (str(file.relative_to(root)), file.parent) if is_own else (path, root)
        for sentence, before in _sentences(text):
            line = f"{before}{sentence}" if len(before) + len(sentence) <= MOST_QUOTED else sentence
            short = line if len(line) <= MOST_QUOTED else f"{line[: MOST_QUOTED - 1]}…"
            for verb, rules in _meant(_Sentence(sentence, before, Ground(folder, root))):
                found.setdefault((verb, *rules), Found(verb, rules, f'{name} says: "{short}"'))
    return list(found.values())


_NO_TEXT = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|<!--.*?(?:-->|\Z)", re.MULTILINE | re.DOTALL)
_BULLET = re.compile(r"(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_STRESSED = re.compile(
    r"\*\*(?=\S)([^*`]+)\*\*|(?<![\w*/.])\*(\w[^*`/]*)\*(?![\w*/.])|(?<![\w/])__?([^\W_][^_`]*)__?(?!\w|\.\w)"
)
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.!](?=\s+[A-Z`])|;(?=\s)")


def _sentences(text: str) -> Iterator[tuple[str, str]]:
    """Each sentence outside of code blocks, with what stands before it in its paragraph or item."""
    for paragraph in _paragraphs(_NO_TEXT.sub("\n", text.replace("’", "'"))):
        whole = _STRESSED.sub(lambda found: found[1] or found[2] or found[3], paragraph)
        start = 0
        for end in (*(found.end() for found in _END.finditer(_without_code(whole))), len(whole)):
            if sentence := whole[start:end].strip().rstrip(";"):
                yield sentence, whole[: end - len(whole[start:end].lstrip())]
            start = end


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in (*text.splitlines(), ""):
        bare = line.strip().lstrip("> ")
        bullet = _BULLET.match(bare)
        if lines and (not bare or bullet or bare.startswith(("#", "|"))):
            yield " ".join(" ".join(lines).split())
            lines = []
        if bare and not bare.startswith(("#", "|")):
            lines.append(bare[bullet.end() :] if bullet else bare)


def _without_code(text: str) -> str:
    """The text, equally long, with nothing in its code."""
    return re.sub(r"`[^`]*`", lambda code: f"`{'x' * (len(code[0]) - 2)}`", text)


class _Sentence(NamedTuple):
    """One with what stands before it, and where its paths begin."""

    text: str
    before: str
    ground: Ground


_NOT = (
    r"(?:never|do\s+not|don't|must\s+not|mustn't|should\s+not|shouldn't|may\s+not|cannot|can't|must\s+never)"
    r"(?:\s+(?:ever|directly|manually))?"
)
_ASK = r"(?P<ask>ask(?:\s+(?:me|us|first|the\s+user|for\s+(?:permission|confirmation|approval)))*\s+before)(?:\s+you)?"
# Who is told: nobody named, or the one who reads this. "Tests must not touch src/" is about somebody else.
_TOLD = (
    r"(?:^\W*|[,:;(—–]\s*|\s-\s+|\b(?:and|but|so|please|you|we|agents?|assistants?|models?|ai|claude|always|also)\s+)"
)
_HEAD = rf"{_TOLD}(?:{_NOT}|{_ASK})\s+"
_EDIT = (
    r"edit|modify|touch|chang|change|alter|overwrit|overwrite|updat|update|reformat|rewrit|rewrite|hand-edit|"
    r"write\s+to|write"
)
_GONE = r"delet|delete|remov|remove|renam|rename|mov|move|creat|create"  # beside the others; alone they are no rule
_READ = r"read|open|view|inspect|access|look\s+(?:at|into|in)"
_USE = r"run|runn|execute|execut|invoke|invok|call|use|us"
_GIT = r"commit|committ|push|rebas|rebase|merg|merge|amend|force[-\s]push"


def _each(verbs: str) -> str:
    return rf"(?:{verbs})(?:ing)?(?:{AND}(?:{verbs})(?:ing)?)*"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_FILES = _pattern(rf"{_HEAD}(?P<verbs>{_each(f'{_EDIT}|{_READ}|{_GONE}')})\s+")
_LEAVE = _pattern(rf"{_TOLD}(?:(?:stay|keep)\s+out\s+of|hands\s+off|(?P<leave>leave))\s+")
_LEFT = _pattern(r"\s+(?:alone|untouched|as\s+(?:is|it\s+is|they\s+are))")
_PASSIVE = _pattern(
    r"\s+(?:must|should|may|can|is|are)\s*(?:not|never|n't)\s+(?:to\s+)?be\s+(?:manually\s+)?"
    r"(?:edited|modified|touched|changed|altered|overwritten|updated|(?P<run>run|used|executed|called))"
    r"|\s+(?:is|are)\s+(?:read-only|off[-\s]limits|(?P<forbidden>forbidden|banned|prohibited|not\s+allowed))"
)
_IT = _pattern(r"(?:it|them|these|those|this|that)\b(?:\s+(?:files?|folders?|director(?:y|ies)))?")
_COMMANDS = _pattern(rf"{_HEAD}(?P<verbs>{_each(_USE)})\s+")
_GIT_VERBS = _pattern(
    rf"{_HEAD}(?:git\s+)?(?P<verbs>{_each(_GIT)})\b(?:\s+(?:(?:any|your|the|my)\s+)?(?:changes?|anything|code|work))?"
)
_RATHER = _pattern(
    r"(?:(?<!not )(?<!never )(?<!n't )\bus(?:e|es|ing)\s+(?P<other>(?:`[^`]+`|[^`.,;:()]){1,80}?)"
    r"|\b(?<!use )(?<!run )(?P<known>`[^`]+`|[\w-]{1,40}))\s*[,(–—-]*\s*(?:and\s+|but\s+)?"
    r"\b(?:not|never|instead\s+of|rather\s+than)\s+(?:(?:use|run|plain|bare|raw)\s+)*"
)
_INSTEAD = _pattern(r"\binstead\s+of\s+")
_USED = _pattern(r",?\s*(?:always\s+|please\s+)?use\s+(?P<other>`[^`]+`|[\w -]+)")
_WITHOUT_ASKING = _pattern(
    r",?\s*\b(?:without\s+(?:\w+\s+){0,3}(?:ask\w*|permission|approv\w*|confirm\w*|consent|ok|okay)"
    r"|unless\s+(?:\w+\s+){0,4}(?:ask\w*|told|tell\w*|request\w*|instruct\w*|say\w*|permission|approv\w*))\b"
    r"(?:\s+(?:me|us|you|first|the\s+user|to|so|for\s+(?:it|permission|approval|confirmation)|from\s+(?:me|the\s+user)))*"
)
_CONDITION = _pattern(r"\b(?:if|unless|except\w*|without|until|possible|apart\s+from|other\s+than|aside\s+from)\b")
_CASE = _pattern(r"\b(?:when(?:ever)?|while|during|after|before|for)\b")
_ENDS = _pattern(
    r"\s*(?:$|[.!:](?=\s|$)|[(—–]|-\s|,?\s*(?:because|since|as\s+(?:it|they|this|these)|so|it|they|this|these|please|instead(?!\s+of)|again|"
    r"directly|manually|by\s+hand|yourself|on\s+your\s+own|ever|anywhere|at\s+all|locally|here|in\s+this\s+(?:repo\w*|"
    r"project|codebase)|under\s+any\s+circumstances|for\s+any\s+reason|commands?|(?:and\s+|or\s+|but\s+)?"
    rf"(?:always|use|run|{_NOT}))(?:$|\b|\s))"
)
_ENDS_CHOICE = _pattern(rf"{_ENDS.pattern}|\s*,?\s*(?:for|to)\b")


def _meant(sentence: _Sentence) -> Iterator[tuple[Literal["ask", "deny"], tuple[str, ...]]]:
    text, asks = _WITHOUT_ASKING.subn("", sentence.text)
    if _CONDITION.search(_without_code(text)):
        return
    for read in (_of_files, _of_passives, _of_commands, _of_git, _of_choices):
        for found, rules in read(text, sentence):
            if rules:
                asked = asks or (found is not None and found.groupdict().get("ask"))
                yield "ask" if asked else "deny", tuple(dict.fromkeys(rules))


_Read = Iterator[tuple[re.Match[str] | None, list[str]]]


def _of_files(text: str, sentence: _Sentence) -> _Read:
    """Never edit vendor/. `gen/` is generated: do not touch it. Leave migrations/ alone."""
    for found in _FILES.finditer(text):
        if it := _IT.match(text, found.end()):
            before = f"{sentence.before} {text[: found.start()]}"
            starts = (place.start() for place in re.finditer(r"(?<!\S)[`\w.*/~]", before))
            paths = next((some for at in starts if (some := listed_paths(before, at, sentence.ground)[0])), [])
            end = it.end()
        else:
            paths, end = listed_paths(text, found.end(), sentence.ground)
        if _holds(found, text, end):
            yield found, _file_rules(found["verbs"], paths, sentence)
    for found in _LEAVE.finditer(text):
        paths, end = listed_paths(text, found.end(), sentence.ground)
        left = _LEFT.match(text, end) if found["leave"] else None
        if _holds(found, text, left.end() if left else end) and bool(found["leave"]) == bool(left):
            yield found, _file_rules("edit", paths, sentence)


def _of_passives(text: str, sentence: _Sentence) -> _Read:
    """Files in dist/ must not be edited. `git push` is forbidden."""
    paths, end = listed_paths(text, 0, sentence.ground)
    passive = _PASSIVE.match(text, end)
    if paths and passive and not (passive["run"] or passive["forbidden"]) and _ENDS.match(text, passive.end()):
        yield passive, _file_rules("edit", paths, sentence)
    commands, end = listed_commands(text, 0)
    passive = _PASSIVE.match(text, end)
    if commands and passive and (passive["run"] or passive["forbidden"]) and _ENDS.match(text, passive.end()):
        yield passive, _command_rules(commands)


def _of_commands(text: str, sentence: _Sentence) -> _Read:
    """Never run git push. Do not use npm or yarn."""
    for found in _COMMANDS.finditer(text):
        is_run = not re.search(r"\b(?:use|using|call)", found["verbs"], re.IGNORECASE)
        commands, end = listed_commands(text, found.end(), any_code=is_run)
        if _holds(found, text, end):
            yield found, _command_rules(commands)


def _of_git(text: str, sentence: _Sentence) -> _Read:
    """Never commit or push. Ask before committing."""
    for found in _GIT_VERBS.finditer(text):
        if _holds(found, text, found.end()):
            verbs = re.split(AND, re.sub(r"(?i)\bgit\s+|ing\b", "", found["verbs"]).lower())
            yield (
                found,
                [rule for verb in verbs for stem, rules in _OF_GIT.items() if verb[:3] == stem for rule in rules],
            )


_OF_GIT = {
    "com": ("bash(git commit *)",),
    "pus": ("bash(git push *)",),
    "reb": ("bash(git rebase *)",),
    "mer": ("bash(git merge *)",),
    "ame": ("bash(git commit *--amend*)",),
    "for": ("bash(git push *--force*)", "bash(git push -f *)", "bash(git push * -f *)"),
}


def _of_choices(text: str, sentence: _Sentence) -> _Read:
    """Use uv, not pip. Instead of npm, use pnpm."""
    for found in _RATHER.finditer(text):
        other = found["other"] or found["known"]
        if found["known"] and other.strip("` ").partition(" ")[0] not in PROGRAMS:
            continue
        commands, end = listed_commands(text, found.end())
        if _ENDS_CHOICE.match(text, end) or text[end : end + 1] == ")":
            yield None, _command_rules(commands, other)
    for found in _INSTEAD.finditer(text):
        commands, end = listed_commands(text, found.end())
        if used := _USED.match(text, end):
            yield None, _command_rules(commands, used["other"])


def _holds(found: re.Match[str], text: str, end: int) -> bool:
    """True if nothing before or behind narrows what is said."""
    return bool(_ENDS.match(text, end)) and not _CASE.search(_without_code(text[: found.start()]))


def _file_rules(verbs: str, paths: list[str], sentence: _Sentence) -> list[str]:
    reads = re.search(rf"\b(?:{_READ})", verbs, re.IGNORECASE)
    edits = re.search(rf"\b(?:{_EDIT}|access)", verbs, re.IGNORECASE)
    tools = ["file_edit"] * bool(edits) + ["file_read"] * bool(reads)
    return [f"{tool}({path_rule(path, sentence.ground)})" for path in paths for tool in tools]


def _command_rules(commands: list[str], other: str = "") -> list[str]:
    return [rule for command in commands for rule in command_rules(command, other)]
