"""Makes sentences of a message's Markdown, in which code, paths and programs are marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

from msgspec import Struct

from agentcli.conversation.evidence.runs import kinds_named, tables

_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?(?:^ *\1[`~]* *$|\Z)", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"<!--.*?-->|^ *>.*$|^ *[-*] \[ \].*$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"[\"“„«](?:[^\"“”„«»\n]*\s[^\"“”„«»\n]*)[\"”“»]")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"\[([^\]\n]+)\]\([^)\n]+\)")
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d+[.)])\s+(?:\[[xX]\]\s*)?")
_PATH = re.compile(r"(?<![\w/⟦.@:-])(?:\.{0,2}/)?(?:[\w.@-]+/)*[\w@-][\w.@-]*\.[A-Za-z][A-Za-z0-9]{0,9}(?![\w/(⟧])")
_IS_PATH = re.compile(r"[\w.@ ~+-]*(?:/[\w.@ +\[\]()-]+)*/?")
_BARE_FILES = {
    "Makefile",
    "Dockerfile",
    "LICENSE",
    "README",
    "CHANGELOG",
    "Gemfile",
    "Rakefile",
    "Procfile",
    "Justfile",
}
_IS_TEST = re.compile(r"(?:^|[._:/\s])(?:test|it|spec)_|^Test[A-Z]|::|[a-z]Tests?(?:$|[.:#])|_test$")
_END = re.compile(r"(?<=[.!?;])(?=[\s✅❌]|$)|\n| — (?=[A-Z])")
_NO_PATH = re.compile(r"(?:[\d.]+|e\.g|i\.e|etc|vs|Node\.js|Vue\.js|Next\.js|D3\.js)\.?", re.IGNORECASE)
_MARK = re.compile(r"⟦(\w)(\d+)[^⟧]*⟧")


LONGEST = 600  # characters of a sentence that are read


class Sentence(Struct, frozen=True):
    """A sentence in which marks stand for code: `⟦p1⟧` a path, `⟦c2:tests⟧` a known check, `⟦k3⟧` another command,
    `⟦t4⟧` the name of a test, `⟦n5⟧` another name. `marked` has their texts by number.

    `text` is the sentence as written. `heading` is the line above a list that it is in, or the heading above it.
    """

    marks: str
    text: str
    heading: str
    is_item: bool
    marked: tuple[str, ...]

    def of(self, mark: str) -> str:
        """The text that a mark stands for."""
        found = _MARK.fullmatch(mark)
        return self.marked[int(found[2])] if found else mark


def sentences(text: str) -> list[Sentence]:
    """The sentences of a message, without code blocks, quotations and open points."""
    text = _LEFT_OUT.sub("", _FENCE.sub("\n", text.replace("⟦", "[").replace("⟧", "]")))
    marked: list[str] = []
    text = _marked(text, marked)
    found = []
    for line, heading, is_item in _lines(_QUOTED.sub(" ⟦q⟧ ", text)):
        for part in _END.split(line):
            part = part[:LONGEST]
            if part.strip(" -*✅❌.|"):
                told = _MARK.sub(lambda mark: marked[int(mark[2])], part)
                found.append(Sentence(part.strip(), told.strip(), heading, is_item, tuple(marked)))
    return found


def _lines(text: str) -> Iterator[tuple[str, str, bool]]:
    """Paragraphs and items, each as one line, with the heading that they stand below."""
    heading, paragraph = "", ""
    for line in (*text.splitlines(), ""):
        bare = re.sub(
            r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=[\w.!])[*_](?!\w)|[✔✓☑]️?", lambda m: "✅" if m[0][0] in "✔✓☑" else "", line
        )
        item = _ITEM.match(bare)
        is_apart = item or not bare.strip() or bare.lstrip().startswith(("#", "|"))
        if is_apart and paragraph:
            yield paragraph, "", False
            heading = paragraph if paragraph.endswith(":") else ""
            paragraph = ""
        if item:
            yield bare[item.end() :], heading, True
        elif bare.lstrip().startswith("#"):
            heading = bare.strip("# ")
            yield heading, "", False
        elif bare.lstrip().startswith("|"):
            yield " : ".join(cell.strip() for cell in bare.strip("| ").split("|")), heading, True
        elif bare.strip():
            is_row = re.match(r"\S[^.]{0,30}:\s", bare.strip())  # one of several lines, such as `Tests: 3 passed`
            paragraph = (
                f"{paragraph}\n{bare.strip()}" if is_row and paragraph else f"{paragraph} {bare.strip()}".strip()
            )


def _marked(text: str, marked: list[str]) -> str:
    def mark(kind: str, written: str, more: str = "") -> str:
        marked.append(written)
        return f"⟦{kind}{len(marked) - 1}{more}⟧"

    def code(found: re.Match[str]) -> str:
        return mark(*_kind_of(found[2].strip()))

    def _kind_of(written: str) -> tuple[str, str, str]:
        kinds = kinds_named(written)
        if kinds and not _IS_TEST.search(written.split(maxsplit=1)[0]):
            return "c", written, f":{','.join(kinds)}"
        is_file = "." in PurePosixPath(written).name[1:] or "/" in written or written in _BARE_FILES
        is_file = is_file or bool(re.fullmatch(r"\.[a-z]\w+", written))
        if _IS_TEST.search(written) and not ("::" not in written and is_file):
            return "t", written, ""
        if " " in written and not re.fullmatch(r"[\w./-]+", written):
            return ("k", written, "") if re.match(r"[\w./~-]+ ", written) else ("n", written, "")
        if is_file and _IS_PATH.fullmatch(written) and not re.fullmatch(r"[\d.]+|[\w.]+\(\)?", written):
            return "p", written, ""
        return "n", written, ""

    text = _CODE.sub(code, _LINK.sub(r"\1", text))
    text = _PATH.sub(lambda m: m[0] if _NO_PATH.fullmatch(m[0]) else mark("p", m[0].rstrip(".")), text)
    text = re.sub(
        rf"(?<![\w⟦/-])(?:{'|'.join(_BARE_FILES - {'LICENSE', 'README', 'CHANGELOG'})})\b",
        lambda m: mark("p", m[0]),
        text,
    )
    return _spoken().sub(lambda m: mark("c", m[0], f":{','.join(_spoken_kinds()[m[0].lower()])}"), text)


@cache
def _spoken_kinds() -> dict[str, list[str]]:
    """The kinds of checks by the names that messages use for programs."""
    named: dict[str, list[str]] = {}
    for runner in tables()["runner"]:
        for name in runner.get("spoken", ()):
            named.setdefault(name, []).extend(runner["kinds"])
    return named


@cache
def _spoken() -> re.Pattern[str]:
    names = sorted(_spoken_kinds(), key=len, reverse=True)
    return re.compile(rf"(?<![\w/⟦.-])(?:{'|'.join(map(re.escape, names))})(?![\w/⟧-])", re.IGNORECASE)
