"""The words in which messages claim that something passed or failed, and those that make a sentence no claim."""

from __future__ import annotations

import re

NUMBERS = {
    word: n for n, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())
}
_NUMBER = rf"\d+|{'|'.join(NUMBERS)}"
_OF = r"(?:\s*(?:/|\bof\b|\bout of\b)\s*(?:the\s+)?(?P<{0}>\d+))?"
_NOUN = r"(?:errors?|issues?|failures?|problems?|warnings?|offenses?|violations?)"
_WRONG = r"(?:errors?|issues?|failures?|problems?|offenses?|violations?)"  # warnings are none
_NOT = r"\bnot\b|n't\b|\bnever\b|\bno longer\b"
_ADJECTIVE = (
    rf"(?:(?<![\w-])(?!(?:{_NUMBER}|(?:pass|fail)\w*|and|or|but|that|the|is|are|was|were|ran|run|checks?|builds?|"
    rf"lint|with|to|for|in|of|all|both|no|none|when|"
    r"if|once|until|unless|whether|after|before|because|should|must|will|can|a|an|this)\b)[\w-]+\s+)"
)

# Each kind of check as a message names it.
SUBJECTS = {
    "tests": rf"(?P<some>\b(?:not (?:all|every)|none|no)\s+(?:of\s+)?)?(?P<all>\b(?:all|every|each|both|full|"
    rf"entire|whole|complete)\b\s*)?(?:of\s+)?"
    rf"(?:(?:the|these|those|its|our|my)\s+)?(?:\b(?P<n>{_NUMBER})\b{_OF.format('m')}\s+)?{_ADJECTIVE}{{0,3}}?"
    r"\b(?:tests?(?:[ -](?:suites?|cases?|files?|runs?))?|suites?|specs|examples|test)\b(?:\s+⟦t\d+⟧)?"
    r"(?P<of>\s+(?:in|for|of|from|under)\s+(?:the\s+)?(?:⟦[ptn]\d+⟧|(?!all|python|node)[a-z][\w.-]+))?"
    r"|⟦t\d+⟧(?:\s+test)?|⟦c\d+:tests[^⟧]*⟧",
    "lint": r"\blinters?\b|\blint(?:ing)?(?:\s+(?:checks?|step))?\b|⟦c\d+:lint[^⟧]*⟧",
    "types": r"\btype[- ]?check(?:s|ing|ers?)?\b|\btypes\b(?=\s*:|\s+are\b)|⟦c\d+:types[^⟧]*⟧",
    "format": r"\bformatting\b|\bformat checks?\b|⟦c\d+:format[^⟧]*⟧",
    "build": r"(?-i:\b[Bb]uilds?\b)(?!\s+(?:a|an|the|and)\b)|\bcompilation\b|⟦c\d+:build[^⟧]*⟧",
    "checks": r"\b(?:all\s+)?(?:quality\s+|verification\s+)?checks\b|\beverything\b",
    "command": r"⟦k\d+⟧|⟦p\d+⟧(?=\s+(?:\w+\s+){0,3}?(?:exit|ran\b|succeed|finished))",
}
_PLACE = (
    r"\b(?:across|in|on|from|under|for)\s+(?:the\s+|all\s+)?(?:\d+\s+)?(?:⟦[pn]\d+⟧|[\w.-]+)"
    r"(?:\s+(?:files?|suites?|packages?|modules?|crates?|workspaces?|folders?|projects?))?"
)
# What may stand between what is claimed about and what is claimed.
FILL = (
    rf"(?P<fill>(?:\s|\((?![^)]*(?:pass|fail|\d))[^()]{{1,40}}\)|[,:→⇒=>—–()|-]|{_NOT}|\b(?:is|are|was|were|do|"
    rf"does|did|have|has)(?=n't)|{_PLACE}|\b(?:now|"
    rf"all|still|also|both|again|"
    r"currently|do|does|did|are|is|was|were|been|have|has|had|run|runs|ran|completed?|completes|finish(?:es|ed)?|"
    r"came?|comes?|"
    r"back|reports?|reported|shows?|remains?|stays?|returns?|returned|gets?|got|yet|fully|locally|status|step|"
    r"results?|expected|"
    r"too|as|well|consistently|exits?|continues?\s+to|which|of|them|it|here|even|then)\b|⟦[pntk]\d+⟧|⟦q⟧)*?)"
)
_GOOD = (
    rf"\b(?P<n2>\d+){_OF.format('m2')}\s+(?:tests?\s+)?(?:pass(?:ed|ing)?|OK|green)\b|"
    rf"\b(?P<n3>\d+)/(?P<m3>\d+)(?!\s+(?:tests? )?fail)|"
    rf"\b(?:with\s+)?exit(?:s|ed)?\s+(?:with\s+)?(?:code\s+|status\s+)*0\b|\bwith(?:out)?\s+(?:any\s+|no\s+|"
    rf"0\s+)?(?:[\w-]+\s+)?{_NOUN}(?<!with)|"
    rf"\b(?:found\s+|finds\s+|with\s+|had\s+)?(?:no|0|zero)\s+(?:[\w-]+\s+)?{_NOUN}|"
    r"\bpass(?:es|ed|ing)?\b(?!\s+(?:a|an|the)\b|\s*⟦n)|\bgreen\b|\bsucceed(?:s|ed|ing)?\b|"
    r"\bsuccess(?:ful(?:ly)?)?\b|\bclean(?:ly)?\b|\bOK\b|\bhappy\b|✅|"
    r"\b(?:nothing|complete[sd]|finishe[sd])\b(?=\s*(?:$|[.,;)]))|\bworks\b(?=\s*(?:again|now|$|[.,;)]))|"
    r"\bBUILD SUCCESS(?:FUL)?\b"
)
_BAD = (
    rf"\b(?:(?:with|found|finds|reports|has|have|shows|about)\s+)?(?P<n4>{_NUMBER})\s+(?:[\w-]+\s+)?{_WRONG}|"
    r"\b(?P<n5>\d+)\s+(?:tests?\s+)?fail(?:ed|ing|s)?\b|\bfail(?:s|ed|ing)?\b(?:\s+with\s+exit\s+(?:code|"
    r"status)\s+(?P<code>\d+))?|"
    r"\b(?:with\s+)?exit(?:s|ed)?\s+(?:with\s+)?(?:code\s+|status\s+)*(?P<code2>[1-9]\d*)\b|\bred\b(?=\W|$)|\bbroken\b|"
    r"\bbreaks\b|❌|"
    r"\bcomplains\b(?:\s+about\s+(?P<n6>\d+))?|\berrors? out\b"
)
STATE = re.compile(rf"{FILL}(?:(?P<good>{_GOOD})|(?P<bad>{_BAD}))", re.IGNORECASE)
SUBJECT = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in SUBJECTS.items()}
ALSO = re.compile(r"\s*(?:,|and|&|,? as well as|\+)(?:\s+(?:the|and|both))*\s*", re.IGNORECASE)
SO_DO = re.compile(r"\bso (?:do|does|did|are|is)\s+(?:the\s+)?", re.IGNORECASE)
PASSES = re.compile(r"\b(?P<good>pass(?:es|ed)?)\s+(?:(?:all|the|every|both)\s+)*$", re.IGNORECASE)
THEY = re.compile(
    rf"\b(?:it|they|both|everything|all(?: of (?:them|these|which))?)\b{FILL}(?P<good>\bpass(?:es|ed|ing)?\b|"
    rf"\bsucceed(?:s|ed)?\b|\bgreen\b)",
    re.IGNORECASE,
)
COUNT = re.compile(
    rf"\b(?P<n>{_NUMBER}){_OF.format('m')}(?:\s+(?:unit\s+|of them\s+)?(?:tests?)?)?\s*(?:\b(?:have|all|still|are|"
    rf"is|now)\b\s*)*"
    r"(?:(?P<good>\bpass(?:ed|es|ing)?\b|\bOK\b)|(?P<bad>\bfail(?:s|ed|ing|ures?)?\b))|"
    r"(?<![\w/])(?P<n2>\d+)/(?P<m2>\d+)(?![\w/])",
    re.IGNORECASE,
)
NONE_WRONG = re.compile(
    rf"\b(?:no|zero|0)\s+(?:more\s+|remaining\s+|new\s+)?(?:(?P<tests>(?:failing|broken)\s+tests?|test\s+{_NOUN}|"
    rf"failures)|(?P<lint>lint\w*)\s+{_NOUN}|"
    rf"(?P<types>typ(?:e|ing)(?:[- ]check\w*)?)\s+{_NOUN}|(?P<format>format(?:ting)?)\s+{_NOUN}|"
    rf"(?P<build>(?:build|compil\w+))\s+{_NOUN})",
    re.IGNORECASE,
)
STILL_WRONG = re.compile(
    rf"\b(?:there (?:is|are)|still|remaining)\s+(?:still\s+|now\s+)*(?P<n>{_NUMBER})\s+(?:failing|broken)\s+tests?|"
    rf"\b(?P<n2>{_NUMBER})\s+(?:failing|broken)\s+tests?\s+(?:remain|(?:is|are) left)",
    re.IGNORECASE,
)
BUILDS = re.compile(
    r"(?:⟦[pn]\d+⟧|\b(?!(?:that|who|to|we|you|i|script|command|step|job|if|when|of|and)\b)\w+)\s+(?:now\s+|"
    r"still\s+|also\s+|all\s+)*"
    r"(?P<neg>(?:does\s+not|doesn't|no longer|won't)\s+)?(?:builds|(?<=not )build|(?<=n't )build|(?<=not )compile|"
    r"(?<=n't )compile|compiles|compiled|built)\b"
    r"(?=\s*(?:$|[.,;:!)]|and\s+(?:the|all|its?|tests?|passes)\b|with(?:out)?\b|clean|success|fine|again|now|on\b|"
    r"under\b|OK))",
    re.IGNORECASE,
)
RAN = re.compile(r"\b(?:ran|executed|re-ran)\s+(?:the\s+)?(?:[\w-]+\s+){0,3}?(?P<mark>⟦[kc]\d+[^⟧]*⟧)", re.IGNORECASE)

_BOUNDARY = re.compile(
    r";|:\s|\s[—–-]\s|,?\s(?:but|because|while|though|although|whereas)\s|,\s+(?:and|so|which|as|since)\s|"
    r"\sand\s(?=I\b|it\b|they\b|the\b|all\b)",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|once|when(?:ever)?|unless|until|as soon as|assuming|provided|in case|whether|after you|so that|"
    r"before you)\b",
    re.IGNORECASE,
)
_MODAL = re.compile(
    r"\b(?:should|would|could|might|may|will|shall|must|can|cannot|needs?|wants?|try|expect\w*|hope\w*|plan\w*|"
    r"make sure|ensures?|please|"
    r"let me|let's|suggest\w*|recommend\w*|likely|probably|perhaps|maybe|seems?|appears?|looks? like|think|believe|"
    r"assum\w+|suspect|"
    r"guess|(?<!made )sure|certain|unclear|to see|next|todo|going to|about to|goal|aim|intend\w*|requires?|"
    r"asserts?|supposed|presumably|"
    r"(?:to|and|please|you) (?:verify|confirm|check))\b|'(?:ll|d)\b",
    re.IGNORECASE,
)
_NEGATION = re.compile(rf"{_NOT}|\bunable\b|\bwithout\b|\bfail(?:ed|s)? to\b|\bneither\b|\binstead of\b", re.IGNORECASE)
_REPORTED = re.compile(
    r"\b(?:says?|said|claims?|claimed|states?|mentions?|according to|commit message|docs|documentation)\b",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"^\W*(?:(?:then|and|now|you can)\s+)*(?:run|use|make sure|ensure|verify|check|confirm|see|try|call|to)\b",
    re.IGNORECASE,
)
_NO_LIST = re.compile(
    r"\b(?:plan|todo|next|to do|suggest\w*|recommend\w*|propos\w*|would|could|should|will|examples?|remaining|if|"
    r"optional\w*|how to|usage|"
    r"need\w*|require\w*|expected|let me|I'll|going to)\b",
    re.IGNORECASE,
)
HISTORY = re.compile(
    r"\b(?:before|previous(?:ly)?|initially|originally|at first|earlier|used to|until now|had been|was failing|"
    r"were failing|first run|"
    r"pre-existing|prior|without (?:the|this|my|that) (?:fix|change|patch))\b",
    re.IGNORECASE,
)


def clause_before(text: str, at: int) -> str:
    """What stands before a place in its own clause."""
    ends = [match.end() for match in _BOUNDARY.finditer(text, 0, at)]
    return text[ends[-1] if ends else 0 : at]


def is_statement(text: str, heading: str) -> bool:
    """True if a sentence may claim something: it is no question, no order, and stands in no list of plans."""
    return not (
        text.rstrip(" *_").endswith("?")
        or _ORDER.search(text)
        or _NO_LIST.search(heading)
        or "according to" in text.lower()
    )


def is_asserted(text: str, at: int) -> bool:
    """True if what begins at a place of a sentence is said to be so."""
    clause = clause_before(text, at)
    hedges = (_MODAL.search(clause), _NEGATION.search(clause), _REPORTED.search(clause))
    return not (any(hedges) or _CONDITION.search(text, 0, at))


def number(text: str | None) -> int | None:
    return None if text is None else NUMBERS[text.lower()] if text.lower() in NUMBERS else int(text)
