"""Finds what a sentence claims became of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentcli.conversation.evidence.sentences import Sentence
from agentcli.conversation.evidence.wording import is_asserted

_CREATED = r"created|added|wrote|written|generated|saved|introduced|scaffolded|produced"
_DELETED = r"deleted|removed|dropped"
_CHANGED = (
    "updated|modified|edited|changed|fixed|refactored|rewrote|rewritten|patched|extended|adjusted|improved|"
    "implemented|documented|"
    "replaced|corrected|simplified|tweaked|bumped|registered|configured|converted|cleaned up|reworked|wired|hooked|"
    "integrated|renamed|"
    "moved|tightened|covered|applied|enhanced|reverted|restored|made"
)
_PATHS = (
    r"⟦p\d+⟧(?:(?:\s+(?:file|directory|folder))?"
    r"(?:\s*,\s*(?:and\s+)?|\s+(?:and|as well as|plus|along with|or)\s+)(?:the\s+)?⟦p\d+⟧)*"
)
_WORD = r"(?:[\w'’#&.+-]|⟦[ntkcq]\d*[^⟧]*⟧)+"
_DID = re.compile(
    rf"(?P<is>\b(?:is|are|was|were|be|been|being)\s+)?\b(?P<verb>{_CREATED}|{_DELETED}|"
    rf"{_CHANGED})\b(?P<what>(?:[\s:*/]+(?!by\b|that\b|when\b|if\b|using\b|because\b|via\b){_WORD}){{0,14}}?)"
    rf"\s*,?[\s:*(]*(?P<paths>{_PATHS})(?:(?:\s*,)?\s*(?:plus|and|with|along with)\s+(?:[\w-]+\s+){{0,4}}(?:in|"
    rf"to)\s+(?P<more>{_PATHS}))?",
    re.IGNORECASE,
)
_BECAME = re.compile(
    rf"(?<!\bin )(?<!\bof )(?<!from )(?<!\bto )(?P<paths>{_PATHS})(?:\s*,)?(?:\s+file)?\s+(?:was|were|has|have|"
    rf"is now|are now|is|are)\s+(?P<neg>not\s+)?(?:been\s+)?(?:\w+ly\s+|also\s+|now\s+)*"
    rf"(?P<verb>{_CREATED}|{_DELETED}|{_CHANGED}|touched)\b(?P<rest>\s*,?\s*(?:along with|together with|"
    rf"as well as)\s+(?P<more>{_PATHS}))?",
    re.IGNORECASE,
)
_MOVED = re.compile(
    r"\b(?P<verb>renamed|moved|copied)\s+(?:the\s+)?(?:file\s+)?(?P<old>⟦p\d+⟧)\s*(?:to|into|→|->|"
    r"as)\s*(?P<new>⟦p\d+⟧)",
    re.IGNORECASE,
)
_KEPT = re.compile(
    r"(?:(?:\bnot|n't|\bwithout)\s+(?:been\s+)?(?:touch\w*|chang\w*|modif\w*|edit\w*|"
    r"alter\w*)\s+(?:the\s+)?(?:file\s+)?(?P<a>⟦p\d+⟧))|"
    r"(?:\bno (?:changes|edits)\s+(?:were|was|have been)\s+made\s+to\s+(?:the\s+)?(?P<d>⟦p\d+⟧))|"
    r"(?:\bmade no (?:changes|edits)\s+to\s+(?:the\s+)?(?P<e>⟦p\d+⟧))|"
    r"(?:\b(?:left|kept|leaving|keeping)\s+(?:the\s+)?(?P<b>⟦p\d+⟧)\s+(?:completely\s+|entirely\s+)?(?:unchanged|"
    r"untouched|as[ -]is|alone|intact))|"
    r"(?:(?P<c>⟦p\d+⟧)\s+(?:is|are|was|were|has|remains?|stays?|stayed|"
    r"remained)\s+(?:been\s+)?(?:left\s+)?(?:unchanged|untouched|unmodified|intact))",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"\bno (?:code |source )?(?:files?|code|changes?)\s+(?:were|was|have been|has been)\s+(?:changed|modified|made|"
    r"touched|edited|written)|"
    r"\b(?:made|did|have made)\s+no\s+(?:code\s+|file\s+)?(?:changes|edits|modifications)|"
    r"n[o']t\s+(?:yet\s+)?(?:chang\w*|modif\w*|touch\w*|edit\w*|ma[dk]e)\s+any(?:thing|\s+(?:files?|code|changes|"
    r"edits|of the code))|"
    r"\b(?:changed|modified|touched|edited)\s+nothing\b|"
    r"\bnothing\s+(?:was|has been)\s+(?:changed|modified|touched|edited)",
    re.IGNORECASE,
)
_HEADINGS = {
    "file_created": re.compile(r"\b(?:new|created?|added|generated)\b.{0,20}$|\b(?:created|added)\b", re.IGNORECASE),
    "file_changed": re.compile(r"\b(?:modified|changed|updated|edited|touched)\b|^changes?\b", re.IGNORECASE),
    "file_deleted": re.compile(r"\b(?:deleted|removed)\b", re.IGNORECASE),
}
_NOTED = re.compile(
    r"(?P<path>⟦p\d+⟧)\s*(?:\(|[—–:-]\s*)(?P<what>new(?: file)?|created|added|modified|updated|changed|edited|"
    r"deleted|removed)(?=\s*(?:$|[),.;]))",
    re.IGNORECASE,
)
_MADE = re.compile(
    r"\bnew\s+(?:[\w-]+\s+){0,2}?(?:file|module|script|test|component)\b\s*[:,]?\s*(?P<path>⟦p\d+⟧)", re.IGNORECASE
)
_GONE = re.compile(r"(?P<path>⟦p\d+⟧)\s+(?:no longer exists|is gone)\b", re.IGNORECASE)
_THERE = re.compile(
    rf"^\W*(?:In\s+)?(?P<path>⟦p\d+⟧)\s*(?:[:—–-]+|,\s*I(?:'ve| have)?(?:\s+\w+ly|\s+also)?)\s*(?:{_CREATED}|"
    rf"{_DELETED}|{_CHANGED})\b",
    re.IGNORECASE,
)
_MARK = re.compile(r"⟦p\d+⟧")


def file_claims(sentence: Sentence) -> Iterator[tuple[str, str, int]]:
    """Kinds of claims, each with the file (empty: all files) and its place in the sentence."""
    text, seen = sentence.marks, set[str]()
    for kind, mark, at in _candidates(sentence):
        if mark not in seen and (kind == "file_unchanged" or is_asserted(text, at)):
            seen.add(mark)
            yield kind, sentence.of(mark) if mark else "", at


def _candidates(sentence: Sentence) -> Iterator[tuple[str, str, int]]:
    text = sentence.marks
    if (nothing := _NOTHING.search(text)) and " other " not in text and not _KEPT.search(text):
        yield "file_unchanged", "", nothing.start()
    for found in _KEPT.finditer(text):
        yield "file_unchanged", next(filter(None, found.groups())), found.start()
    for found in _MOVED.finditer(text):
        if found["verb"].lower() != "copied":
            yield "file_deleted", found["old"], found.start()
        yield "file_created", found["new"], found.start()
    for found in _BECAME.finditer(text):
        is_habit = re.search(r"\s(?:is|are)\s(?!now)", found[0]) and not found["neg"]
        kind = _kind(found["verb"], "")
        if found["neg"]:
            kind = "file_unchanged" if kind == "file_changed" else ""
        if kind and not (is_habit and kind != "file_changed"):
            for mark in _MARK.findall(found[0]):
                yield kind, mark, found.start()
    for found in _DID.finditer(text):
        kind = _kind(found["verb"], found["what"])
        if found["is"] and not re.fullmatch(_CHANGED, found["verb"], re.IGNORECASE):
            continue  # `is generated from`, `was introduced in`
        for mark in _MARK.findall(found["paths"]):
            yield kind, mark, found.start()
        for mark in _MARK.findall(found["more"] or ""):
            yield "file_changed", mark, found.start()
    yield from _listed(sentence)
    for kind, pattern in (("file_created", _MADE), ("file_deleted", _GONE), ("file_changed", _THERE)):
        for found in pattern.finditer(text):
            yield kind, found["path"], found.start()


def _kind(verb: str, what: str) -> str:
    """What a verb says of a file, by the words between the two."""
    verb, words = verb.lower(), what.lower().split()
    is_inside = bool(
        {"in", "into", "inside", "within", "to", "from", "at", "of", "on", "for", "across", "under"} & set(words)
    )
    if re.fullmatch(_CREATED, verb):
        is_output = verb in ("wrote", "written", "saved", "generated", "produced") and "test" not in what.lower()
        makes_file = bool({"file", "script", "module", "page", "document"} & set(words))
        return (
            "file_changed" if is_inside and not is_output and not (makes_file and "called" in words) else "file_created"
        )
    if re.fullmatch(_DELETED, verb) and not is_inside:
        return "file_deleted"
    return "file_changed"


def _listed(sentence: Sentence) -> Iterator[tuple[str, str, int]]:
    """Files of a list whose heading, or a word beside them, says what became of them."""
    for found in _NOTED.finditer(sentence.marks):
        what = found["what"].lower()
        kind = "new" if what.startswith("new") else what
        made = kind in ("new", "created", "added")
        yield (
            "file_created" if made else "file_deleted" if kind in ("deleted", "removed") else "file_changed",
            found["path"],
            found.start(),
        )
    first = re.match(rf"\W*(?P<paths>{_PATHS})", sentence.marks)
    if first and sentence.is_item:
        for kind, heading in _HEADINGS.items():
            if heading.search(sentence.heading):
                yield from ((kind, mark, first.start()) for mark in _MARK.findall(first["paths"]))
                return
