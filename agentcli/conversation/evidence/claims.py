"""Finds what a final message claims: that checks pass or fail, that commands ran, what became of files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from agentcli.conversation.evidence.files_claimed import file_claims
from agentcli.conversation.evidence.sentences import Sentence, sentences
from agentcli.conversation.evidence.wording import (
    ALSO,
    BUILDS,
    COUNT,
    HISTORY,
    NONE_WRONG,
    PASSES,
    RAN,
    SO_DO,
    STATE,
    STILL_WRONG,
    SUBJECT,
    THEY,
    clause_before,
    is_asserted,
    is_statement,
    number,
)

_GOOD = {"tests": "tests_pass", "lint": "lint_clean", "types": "types_clean", "format": "format_clean"}
_GOOD |= {"build": "build_passes", "checks": "checks_pass", "command": "command_passed"}
_BAD = {"tests": "tests_fail", "lint": "lint_fails", "types": "types_fail", "format": "format_fails"}
_BAD |= {"build": "build_fails", "checks": "checks_fail", "command": "command_failed"}
_NAMES = re.compile(r"⟦[tp]\d+⟧")
_PATH = re.compile(r"⟦p\d+⟧")
_TEST_FILE = re.compile(r"(?:^|/)tests?_[^/]*$|[._](?:test|spec)s?\.\w+$|Tests?\.\w+$|(?:^|/)tests?(?:/|$)")
_MARK = re.compile(r"⟦[ck]\d+[^⟧]*⟧")
_LONGEST = 30_000  # characters of a message that are read
_MOST = 100  # claims


class Found(Struct, frozen=True):
    """A claim that is to be checked, made from `start` to `end` of a sentence.

    `count` of `out_of` tests; `names` are tests and files that it is about, `command` the program, `path` the file.
    `is_all`: it is about every test. `exit_code` is one that it names.
    """

    kind: str
    text: str
    start: int = 0
    end: int = 0
    count: int | None = None
    out_of: int | None = None
    names: tuple[str, ...] = ()
    command: str = ""
    path: str = ""
    is_all: bool = False
    exit_code: int | None = None
    is_past: bool = False


class _Subject(Struct, frozen=True):
    kind: str
    start: int
    end: int
    found: re.Match[str]


def found_claims(message: str) -> list[Found]:
    """All claims of a message, in its order."""
    claims: list[Found] = []
    before: list[_Subject] = []
    sentence_before: Sentence | None = None
    for sentence in sentences(message[:_LONGEST]):
        if not is_statement(sentence.marks, sentence.heading):
            before = []
            continue
        subjects = _subjects(sentence)
        is_tested = any(claim.kind.startswith("tests") for claim in claims) or _has_tests([*before, *subjects])
        checks = _about_checks(sentence, subjects, is_tested=is_tested)
        if (
            [check.kind for check in checks] == ["checks_pass"]
            and _has_tests(before)
            and not (claims and claims[-1].kind == "tests_pass")
        ):
            checks, subjects = [], []  # `I ran the tests; everything passes`
        if not checks and (they := THEY.search(sentence.marks)) and is_asserted(sentence.marks, they.start()):
            checks = _about_them(sentence, they, subjects, before, sentence_before or sentence)
        files = [Found(kind, sentence.text, at, path=path) for kind, path, at in file_claims(sentence)]
        ran = [] if checks else list(_ran(sentence))
        claims += sorted([*checks, *files, *ran], key=lambda claim: claim.start)
        before, sentence_before = subjects, sentence
    return _without_history(claims)[:_MOST]


def _without_history(claims: Sequence[Found]) -> list[Found]:
    """Without failures of which a later claim says that they are over."""
    over = {
        "tests_fail": "tests_pass",
        "lint_fails": "lint_clean",
        "build_fails": "build_passes",
        "types_fail": "types_clean",
    }
    return [
        claim
        for n, claim in enumerate(claims)
        if not (claim.is_past and any(later.kind == over.get(claim.kind) for later in claims[n + 1 :]))
    ]


def _has_tests(subjects: Sequence[_Subject]) -> bool:
    return any(subject.kind == "tests" for subject in subjects)


def _subjects(sentence: Sentence) -> list[_Subject]:
    text = sentence.marks
    found = [
        _Subject("tests", m.start(), m.end(), m) for m in _PATH.finditer(text) if _TEST_FILE.search(sentence.of(m[0]))
    ]
    found += [
        _Subject(kind, match.start(), match.end(), match)
        for kind, pattern in SUBJECT.items()
        for match in pattern.finditer(text)
    ]
    found.sort(key=lambda subject: (subject.start, -subject.end))
    outer: list[_Subject] = []
    for subject in found:
        if not outer or subject.start >= outer[-1].end:
            outer.append(subject)
    return outer


def _about_checks(sentence: Sentence, subjects: Sequence[_Subject], *, is_tested: bool) -> list[Found]:
    text, claims = sentence.marks, list[Found]()
    for n, subject in enumerate(subjects):
        at = subject.end
        for other in subjects[n + 1 :]:  # `A and B are clean`
            if ALSO.fullmatch(text, at, other.start):
                at = other.end
        state = STATE.match(text, at)
        so_do = SO_DO.search(text, 0, subject.start) if claims else PASSES.search(text, 0, subject.start)
        if state is None and so_do and is_asserted(text, so_do.start()):
            claims.append(_claim(sentence, subject, "good", subject.end))
        elif state is not None and (claim := _judged(sentence, subject, state)) is not None:
            claims.append(claim)
    claims = [claim for n, claim in enumerate(claims) if not _is_said_again(claim, claims[n + 1 :])]
    claims = _joined(claims)
    claims += _by_themselves(sentence, claims)
    if len(claims) > 1:  # `everything is green: 12 tests passed`
        claims = [claim for claim in claims if claim.kind != "checks_pass" or "everything" not in sentence.text.lower()]
    return _counted(sentence, claims) if is_tested or COUNT.match(text) else claims


def _joined(claims: list[Found]) -> list[Found]:
    """With the number beside the program: `mvn test: 15 tests run, no failures` claims one thing."""
    for n, (claim, other) in enumerate(pairwise(claims)):
        is_number = other.kind == claim.kind and other.count is not None and not other.command
        if claim.command and claim.count is None and is_number:
            one = replace(claim, count=other.count, out_of=other.out_of, end=other.end)
            return [*claims[:n], one, *claims[n + 2 :]]
    return claims


def _is_said_again(claim: Found, later: Sequence[Found]) -> bool:
    return any(
        claim.kind == other.kind and claim.end == other.end and not claim.command
        for other in later
        if other.count is not None
    )


def _judged(sentence: Sentence, subject: _Subject, state: re.Match[str]) -> Found | None:
    """The claim that a subject is in a state; None if that is only wished, supposed, or was so once."""
    text, fill = sentence.marks, state["fill"]
    some = subject.found.groupdict().get("some")
    if not is_asserted(text, subject.start):
        return None
    is_good = bool(state["good"])
    if some or re.search(r"\bnot\b|n't\b|\bnever\b|\bno longer\b", fill, re.IGNORECASE):
        is_good = not is_good
    around = clause_before(text, subject.start) + text[subject.start : state.end()] + text[state.end() :].split(",")[0]
    if HISTORY.search(around) and not (is_good and re.search(r"\bnow\b|\bagain\b|\bstill\b", text)):
        return None
    if not is_good and re.search(r"\b(?:was|were)\s+failing\b", around):
        return None
    if state["good"] == "✅" and subject.kind == "command":
        return None
    claim = _claim(sentence, subject, "good" if is_good else "bad", state.end())
    groups = state.groupdict()
    count = number(groups["n2"] or groups["n3"] or (groups["n4"] if subject.kind == "tests" else None) or groups["n5"])
    code = groups["code"] or groups["code2"]
    return replace(
        claim,
        count=claim.count if claim.count is not None else count,
        out_of=claim.out_of or number(groups["m2"] or groups["m3"]),
        exit_code=int(code) if code else None,
        is_past=bool(re.search(r"failed$|errors?$", state[0])) and not is_good,
        names=claim.names or tuple(sentence.of(mark) for mark in _NAMES.findall(fill)),
    )


def _claim(sentence: Sentence, subject: _Subject, how: str, end: int) -> Found:
    groups, written = subject.found.groupdict(), subject.found[0]
    names = [sentence.of(mark) for mark in _NAMES.findall(written)]
    if (of := groups.get("of")) and not names:
        names = [sentence.of(of.split()[-1])]
    command = next((sentence.of(mark) for mark in _MARK.findall(written)), "")
    if subject.kind == "command":
        command, names = command or names[0], []
    is_all = bool(groups.get("all") and groups["all"].strip().lower() != "both") or "suite" in written.lower()
    return Found(
        (_GOOD if how == "good" else _BAD)[subject.kind],
        sentence.text,
        subject.start,
        end,
        number(groups.get("n")),
        number(groups.get("m")),
        tuple(names),
        command,
        is_all=is_all and not names,
    )


def _by_themselves(sentence: Sentence, claims: Sequence[Found]) -> Iterator[Found]:
    """Claims that need no subject: `no type errors`, `it compiles`, `there is still one failing test`."""
    text, kinds = sentence.marks, {claim.kind for claim in claims}
    for found in NONE_WRONG.finditer(text):
        kind = next(name for name, value in found.groupdict().items() if value)
        if _GOOD[kind] not in kinds and is_asserted(text, found.start()):
            yield Found(_GOOD[kind], sentence.text, found.start(), found.end())
    for found in BUILDS.finditer(text):
        kind = "build_fails" if found["neg"] else "build_passes"
        if not kinds & {"build_passes", "build_fails"} and is_asserted(text, found.start()):
            yield Found(kind, sentence.text, found.start(), found.end())
    for found in STILL_WRONG.finditer(text):
        if "tests_fail" not in kinds and is_asserted(text, found.start()):
            yield Found("tests_fail", sentence.text, found.start(), found.end(), number(found["n"] or found["n2"]))


def _counted(sentence: Sentence, claims: list[Found]) -> list[Found]:
    """With the numbers that stand by themselves: `all tests pass (12 passed)`, `11 tests pass and 1 fails`."""
    text = sentence.marks
    for found in COUNT.finditer(text):
        is_told = any(claim.start <= found.start() < claim.end for claim in claims)
        if is_told or not is_asserted(text, found.start()) or HISTORY.search(clause_before(text, found.start())):
            continue
        count, out_of = number(found["n"] or found["n2"]), number(found["m"] or found["m2"])
        kind = "tests_fail" if found["bad"] else "tests_pass"
        same = next((n for n, claim in enumerate(claims) if claim.kind == kind and claim.count is None), None)
        if same is not None:
            claims[same] = replace(claims[same], count=count, out_of=out_of)
        elif found["bad"] and count == 0:
            continue
        elif (found["good"] or found["bad"]) and not any(claim.kind == kind for claim in claims):
            claims.append(
                Found(kind, sentence.text, found.start(), found.end(), count, out_of, is_past="failed" in found[0])
            )
    return claims


def _about_them(
    sentence: Sentence,
    they: re.Match[str],
    subjects: Sequence[_Subject],
    before: Sequence[_Subject],
    sentence_before: Sentence,
) -> list[Found]:
    """Claims about what was named before: `I added a test and it passes`."""
    here = [subject for subject in subjects if subject.end <= they.start()]
    source = sentence if here else sentence_before
    meant = here or list(before)
    if they[0].lower().startswith("it"):
        meant = meant[-1:]
    files = [source.of(subject.found[0]) for subject in meant if _PATH.fullmatch(subject.found[0])]
    others = [subject for subject in meant if not _PATH.fullmatch(subject.found[0])]
    if sum(subject.kind == "tests" for subject in others) > 1:  # `the suite has four tests and they pass`
        counted = [subject for subject in others if subject.kind != "tests" or subject.found.groupdict().get("n")]
        others = counted if _has_tests(counted) else others
    claims = [_claim(source, subject, "good", they.end()) for subject in others or meant if subject.kind != "command"]
    if files and others:
        claims = [replace(claim, names=claim.names or tuple(files)) for claim in claims]
    return [replace(claim, text=sentence.text, start=they.start()) for claim in claims]


def _ran(sentence: Sentence) -> Iterator[Found]:
    for found in RAN.finditer(sentence.marks):
        if is_asserted(sentence.marks, found.start()):
            yield Found("command_ran", sentence.text, found.start(), found.end(), command=sentence.of(found["mark"]))
