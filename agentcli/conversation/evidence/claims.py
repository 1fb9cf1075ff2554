"""Finds the claims in a final message, by the patterns in `wording.toml`: checks that pass, files that were changed."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from agentcli.conversation.evidence import UncheckedClaim
from agentcli.conversation.evidence.verdicts import check_kinds, runner_tables
from agentcli.tables import read_table

_MAX_MESSAGE_CHARS, _MAX_SENTENCE_CHARS, _MAX_CLAIMS = 30_000, 600, 100
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
# By topic: the second part of a claim's kind, if the check failed and if it passed (`tests_fail`, `tests_pass`).
_OUTCOMES = {
    **dict.fromkeys(("tests", "checks"), ("fail", "pass")),
    **dict.fromkeys(("lint", "format"), ("fails", "clean")),
    "types": ("fail", "clean"),
    "build": ("fails", "passes"),
    "command": ("failed", "passed"),
}

_SKIPPED = re.compile(  # code blocks, comments, quotations and open tasks, sections on plans, headings
    r"^ *(`{3,}|~{3,}).*?(?:^ *\1[`~]* *$|\Z)|<!--.*?-->|^ *(?:>|[-*] \[ \])[^\n]*$|"
    r"^[#* ]{0,9}(?:next steps|to ?do|plan|remaining)\b[^\n]*\n(?:\s*(?:[-*]|\d+\.) [^\n]*\n?)+|^ *#[^\n]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“„«](?:[^\"“”„«»\n]*\s[^\"“”„«»\n]*)[\"”“»]")  # a quotation of several words
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")  # inline code
_LINK = re.compile(r"\[([^\[\]\n]+)\]\([^()\n]+\)")  # a Markdown link
_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=[\w.!])[*_](?!\w)")
_LINE_END = re.compile(r"\n(?![ \t]*(?:\n|$|[-*+•|]|\d+[.)]|\S[^.\n]{0,30}:\s))[ \t]*")  # inside a paragraph
_ITEM = re.compile(r"^[ \t]*(?:[-*+•]|\d+[.)])[ \t]+(?:\[[xX]\]\s*)?", re.MULTILINE)  # the mark of a list item
_END = re.compile(r"(?<=[.!?;])(?=[\s✅❌]|$)|\n")  # the end of a sentence
_LINE_NUMBER = re.compile(r"(?<=⟧):\d+(?:[:-]\d+)*\b(?! (?:tests? )?(?:pass|fail)ed)")
_MARK = re.compile(r"⟦(?P<kind>\w)(?P<number>\d+)[^⟧]*⟧")  # see `_mark`


class MarkedSentence(Struct, frozen=True):
    """A sentence with marks in place of paths and names (see `_mark`)."""

    marks: str  # the sentence with its marks
    marked: list[str]  # by number of the mark: the text that it replaces

    def texts_in(self, part: str, kinds: str = "pcktn") -> list[str]:
        """Return the texts behind the marks in `part`; `kinds` are letters of `_mark`, by default all but `l`."""
        return [self.marked[int(found["number"])] for found in _MARK.finditer(part) if found["kind"] in kinds]

    def search(self, name: str) -> Iterator[re.Match[str]]:
        """Yield the matches of a pattern that the sentence asserts."""
        for found in _wording()[name].finditer(self.marks):
            if self.is_asserted(found.start()):
                yield found

    def is_asserted(self, at: int) -> bool:
        """Return True if the clause has no word of a wish, condition or denial before `at`."""
        start = max((end.end() for end in _wording()["clause_end"].finditer(self.marks, 0, at)), default=0)
        return not _wording()["hedge"].search(self.marks, start, at)

    def claim(self, kind: str, start: int, target: str = "", **more: Any) -> UncheckedClaim:
        without_quotations = self.marks.replace("⟦q⟧", "…")
        text = _MARK.sub(lambda mark: self.marked[int(mark["number"])], without_quotations)
        return UncheckedClaim(kind=kind, text=text, start=start, target=target, **more)


def find_claims(message: str) -> list[UncheckedClaim]:
    """Return the claims of a message in their order, at most `_MAX_CLAIMS`."""
    claims: list[UncheckedClaim] = []
    earlier_subjects: list[re.Match[str]] = []  # of the previous sentence
    for sentence in split_sentences(message[:_MAX_MESSAGE_CHARS]):
        if _wording()["no_statement"].search(sentence.marks):
            earlier_subjects = []
            continue
        subjects = list(_wording()["subject"].finditer(sentence.marks))
        found = [*_outcome_claims(sentence, subjects)] or [*_claims_with_pronouns(sentence, subjects, earlier_subjects)]
        is_past = _wording()["history"].search(sentence.marks) and not _wording()["present"].search(sentence.marks)
        if is_past or not found:  # a past outcome may have changed, but that the command ran is still true
            runs = sentence.search("ran")
            found = [sentence.claim("command_ran", 0, *sentence.texts_in(run["command"])) for run in runs]
        claims += sorted([*found, *_file_claims(sentence)], key=lambda claim: claim.start)
        earlier_subjects = subjects
    return claims[:_MAX_CLAIMS]


@cache
def _wording() -> dict[str, re.Pattern[str]]:
    """Return the patterns of `wording.toml` by name; `<name>` in one of them stands for an earlier one."""
    texts: dict[str, str] = {}
    for name, text in read_table(__file__, "wording").items():
        texts[name] = re.sub(r"(?<!P)<(\w+)>", lambda found: f"(?:{texts[found[1]]})", "".join(text))
    return {name: re.compile(text, re.IGNORECASE) for name, text in texts.items()}


def split_sentences(text: str) -> Iterator[MarkedSentence]:
    """Yield the sentences of a message, without code blocks, headings, quotations and open tasks."""
    marked: list[str] = []
    text = _SKIPPED.sub("\n", text.replace("⟦", "[").replace("⟧", "]"))  # only `_mark` may write ⟦⟧
    text = _QUOTED.sub(" ⟦q⟧ ", _mark(text, marked))
    text = re.sub(r"[✔✓☑]️?", "✅", _EMPHASIS.sub("", text)).replace("|", " : ")  # the cells of a table's row
    text = _ITEM.sub("", _LINE_END.sub(" ", text))
    for part in _END.split(text):
        if part.strip(" -*✅❌.|"):
            yield MarkedSentence(part[:_MAX_SENTENCE_CHARS].strip(), marked)


def _mark(text: str, marked: list[str]) -> str:
    """Replace paths and names by marks, and append their texts to `marked`: `pytest -q` becomes ⟦c0:tests⟧.

    The patterns of `wording.toml` match the marks instead of the many forms of paths, commands and names.

    Kinds of marks: p a path, l a line number after one, c a known check, k another command, t a test, n another name.
    The kinds of a check follow its number; the path of a test file has `:tests` there, too.
    """
    wording = _wording()

    def mark(kind: str, written: str, suffix: str = "") -> str:
        marked.append(written)
        suffix = ":tests" if kind == "p" and wording["test_file"].search(written) else suffix
        return f"⟦{kind}{len(marked) - 1}{suffix}⟧"

    def mark_code(found: re.Match[str]) -> str:
        written = found[2].strip()  # without the backquotes
        # The name of a test, such as `test_run_tests`, is not a check even if it looks like a test runner.
        if (kinds := check_kinds(written)) and not wording["test_name"].search(written.split()[0]):
            return mark("c", written, f":{','.join(kinds)}")
        is_path = wording["path"].fullmatch(written)
        if wording["test_name"].search(written) and ("::" in written or not is_path):
            return mark("t", written)
        has_arguments = re.match(r"[\w./~-]+ ", written)
        return mark("p" if is_path else "k" if has_arguments else "n", written)

    text = _CODE.sub(mark_code, _LINK.sub(r"\1", text))
    text = wording["path_in_text"].sub(lambda found: mark("p", found[0]), text)
    text = _LINE_NUMBER.sub(lambda found: mark("l", found[0]), text)
    programs = runner_tables()["spoken"]
    names = rf"(?<![\w/⟦.-])(?:{'|'.join(programs)})(?![\w/⟧-])"
    return re.sub(names, lambda found: mark("c", found[0], f":{programs[found[0].lower()]}"), text, flags=re.IGNORECASE)


def _outcome_claims(sentence: MarkedSentence, subjects: Sequence[re.Match[str]]) -> Iterator[UncheckedClaim]:
    """Yield the claims that checks passed or failed: those about the subjects, last one first, then `12 passed`."""
    text, wording = sentence.marks, _wording()
    kinds = set[str]()  # the kinds of the claims so far
    is_history = wording["history"].search(text) is not None  # then a failure may be fixed by now
    next_subject: re.Match[str] | None = None  # the one after `subject` in the sentence
    state: re.Match[str] | None = None  # the words that say if a subject is good or bad: `all pass`
    for subject in reversed(subjects):
        # In `A and B are clean`, A takes the state of B.
        if next_subject is None or not wording["also"].fullmatch(text, subject.end(), next_subject.start()):
            state = wording["state"].match(text, subject.end(), next_subject.start() if next_subject else len(text))
        next_subject = subject
        if state is not None and sentence.is_asserted(subject.start()):
            is_negated = wording["negation"].search(state["fill"]) is not None
            is_good = bool(state["good"]) is not is_negated
            if is_good or not is_history:
                claim = _claim(sentence, subject, state, is_good=is_good)
                kinds.add(claim.kind)
                yield claim
    for found in (*sentence.search("alone"), *sentence.search("count")):  # `it compiles`, `12 passed`
        kind = found.lastgroup or ""  # the groups of these patterns are named by the kind of claim
        # Another claim of the same kind is a repetition: `all tests pass (12 passed)` is one claim, with the number.
        if (kind == "tests_fail" and is_history) or kind in kinds:
            continue
        # A number needs no subject at the start (`12 passed`) or beside another claim (`all tests pass, 2 failed`).
        if found["n"] is None or found.start() == 0 or "tests_pass" in kinds:
            kinds.add(kind)
            yield sentence.claim(kind, found.start(), "", **_numbers(found["n"] or ""))


def _claims_with_pronouns(
    sentence: MarkedSentence, subjects: Sequence[re.Match[str]], earlier_subjects: Sequence[re.Match[str]]
) -> Iterator[UncheckedClaim]:
    """Yield claims about subjects that were named before: `I added a test and it passes`."""
    for pronoun in sentence.search("they"):  # `it passes`, `they succeed`
        named = [subject for subject in subjects if subject.end() <= pronoun.start()] or earlier_subjects
        meant = named[-1:] if pronoun[0].lower().startswith("it") else named
        last_by_topic = {subject.lastgroup: subject for subject in meant}
        last_by_topic.pop("command", None)  # commands do not pass
        yield from (_claim(sentence, subject, None) for subject in last_by_topic.values())


def _claim(
    sentence: MarkedSentence, subject: re.Match[str], state: re.Match[str] | None, *, is_good: bool = True
) -> UncheckedClaim:
    """Return the claim that a subject is in a state; without a state, that it passes.

    The claim holds what is compared with the log: the number of tests or the exit code, the command, and the names of
    tests and files. It is about all tests if it says so and names none.
    """
    topic, subject_text = subject.lastgroup or "", subject[0]
    kind = f"{topic}_{_OUTCOMES[topic][is_good]}"
    # The groups of `state` that may hold a number: an exit code of a command, or how many tests passed or failed.
    groups = ("code", "other_code") if topic == "command" else ("passed", "ratio", "failed")
    number = next((state[group] for group in groups if state[group]), "") if state else ""
    numbers = _numbers(subject["n"] or number)
    if topic == "tests" and not numbers:  # the numbers may follow later: `all tests pass (12 passed)`
        # The groups of `count` are named by the kind of claim.
        counts = [found[0] for found in _wording()["count"].finditer(sentence.marks, subject.start()) if found[kind]]
        ratios = re.findall(r"(?<![\w/])\d+/\d+\b", sentence.marks) if is_good else []
        numbers = _numbers(next(iter(counts + ratios), ""))
    # The letters of marks: t a test, p a path, n another name, k a command, c a check.
    part_with_names = subject_text + (state["fill"] if state else "")  # `fill`: what is between subject and outcome
    # Paths and names in a claim about a command are parts of that command.
    names = () if topic == "command" else sentence.texts_in(part_with_names, "tpn")
    commands = sentence.texts_in(subject_text, "pk" if topic == "command" else "c")
    return sentence.claim(
        kind,
        subject.start(),
        commands[0] if commands else "",
        names=tuple(names or ([subject["of"]] if subject["of"] else ())),  # `of`: the parser in `tests of the parser`
        is_all=not names and bool(subject["all"] or "suite" in subject_text.lower()),
        **numbers,
    )


def _numbers(text: str) -> dict[str, int]:
    """Return the numbers of `12`, `twelve`, `12/14` or `12 of 14 tests` as `count` and, if there are two, `out_of`."""
    found = _wording()["numbers"].search(text)
    numbers = [number.lower() for number in (found.groups() if found else ()) if number]
    values = [int(number) if number.isdigit() else _WORDS.index(number) for number in numbers]
    return dict(zip(("count", "out_of"), values, strict=False))


def _file_claims(sentence: MarkedSentence) -> Iterator[UncheckedClaim]:
    """Yield the claims about files, one for each file; a claim without files is about all of them."""
    seen = set[str]()
    for kind, part, at in _file_candidates(sentence):
        for path in sentence.texts_in(part) or [""]:
            if path not in seen:
                seen.add(path)
                yield sentence.claim(kind, at, path)


def _file_candidates(sentence: MarkedSentence) -> Iterator[tuple[str, str, int]]:
    """Yield the kind of a claim, the part of the sentence that names its files, and its position in the sentence."""
    for found in _wording()["unchanged"].finditer(sentence.marks):
        # `did not touch a.py`, `left a.py unchanged`, `a.py is unchanged`, or without a file: `no file changed`.
        files = found["untouched"] or found["left"] or found["staying"] or ""
        yield "file_unchanged", files, found.start()
    for found in sentence.search("moved"):  # `renamed a.py to b.py` makes two claims
        for kind in ("file_deleted", "file_created", "file_changed"):
            if found[kind]:
                yield kind, found[kind], found.start()
    for found in (*sentence.search("became"), *sentence.search("did")):  # `a.py was fixed`, `fixed a.py`
        # In `removed the function from a.py`, only something inside the file was removed.
        is_inside = _wording()["inside"].search(found["between"])
        is_new = found["written"] or (found["created"] and not is_inside)
        kind = "file_created" if is_new else "file_deleted" if found["deleted"] and not is_inside else "file_changed"
        yield kind, found["paths"] + (found.groupdict().get("more") or ""), found.start()
