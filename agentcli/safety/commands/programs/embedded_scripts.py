"""Judges scripts for sed, awk and jq: do they only compute, or could they write, run programs or show secrets?"""

from __future__ import annotations

import re

_SED_ADDRESS = re.compile(r"\d+(?:~\d+)?|\$")
_SED_LABEL = re.compile(r"[ \t]*[\w-]*[ \t]*(?=[;\n}]|$)")
_SED_FLAGS = re.compile(r"[gpiIm0-9]*(?=[ \t]*(?:[;\n}]|$))")


def sed_problem(script: str) -> str:
    """The reason why a sed script may do more than print (sed(1): `e`, `r`, `w` and the `e`, `w` flags of `s`)."""
    reader = _SedReader(script)
    return "" if reader.only_prints() else "what the sed script does is not known to be only printing"


class _SedReader:
    def __init__(self, script: str) -> None:
        self.script = script
        self.at = 0

    def only_prints(self) -> bool:
        while self._skip(" \t\n;"):
            if not (self._address() and self._command()):
                return False
        return True

    def _skip(self, characters: str) -> bool:
        """Pass over characters. True if anything is left."""
        while self.at < len(self.script) and self.script[self.at] in characters:
            self.at += 1
        return self.at < len(self.script)

    def _address(self) -> bool:
        """Read no, one or two addresses and a `!`. False if something else stands there."""
        if not self._one_address():
            return False
        self._skip(" \t")
        if self.script.startswith(",", self.at):
            self.at += 1
            self._skip(" \t")
            if self.script[self.at : self.at + 1] in ("+", "~"):
                self.at += 1
            before = self.at
            if not self._one_address() or self.at == before:
                return False
        return self._skip(" \t!")

    def _one_address(self) -> bool:
        if found := _SED_ADDRESS.match(self.script, self.at):
            self.at = found.end()
            return True
        if self.script[self.at : self.at + 1] not in ("/", "\\"):
            return True
        if self.script[self.at] == "\\":
            self.at += 1
        if self.at >= len(self.script) or not self._delimited(self.script[self.at], parts=1):
            return False
        while self.script[self.at : self.at + 1] in ("I", "M"):
            self.at += 1
        return True

    def _delimited(self, delimiter: str, parts: int) -> bool:
        """Read texts between delimiters. False if one stands inside brackets, where versions of sed disagree."""
        if delimiter in "\\\n":
            return False
        self.at += 1
        for part in range(parts):
            in_brackets = False
            while True:
                char = self.script[self.at : self.at + 1]
                if not char or (char == "\n" and part == 0):
                    return False
                self.at += 2 if char == "\\" else 1
                if char == delimiter:
                    if in_brackets:
                        return False
                    break
                if part == 0 and char in "[]":
                    in_brackets = char == "["
        return True

    def _command(self) -> bool:
        command = self.script[self.at]
        self.at += 1
        if command in "pPdDnNhHgGxlFz=":
            return self._ends()
        if command in "qQ":
            self._skip(" \t0123456789")
            return self._ends()
        if command in "{}":
            return True
        if command == "#":
            end = self.script.find("\n", self.at)
            self.at = end if end >= 0 else len(self.script)
            return True
        if command in "btT:":
            found = _SED_LABEL.match(self.script, self.at)
            self.at = found.end() if found else self.at
            return found is not None
        if command in "sy":
            return self._substitution(command)
        return False

    def _substitution(self, command: str) -> bool:
        if self.at >= len(self.script) or not self._delimited(self.script[self.at], parts=2):
            return False
        if command == "s":
            found = _SED_FLAGS.match(self.script, self.at)
            if not found:
                return False
            self.at = found.end()
        return self._ends()

    def _ends(self) -> bool:
        self._skip(" \t")
        return self.at >= len(self.script) or self.script[self.at] in ";\n}#"


# Names with which awk runs programs, reads other files or the environment, or loads code (gawk manual).
_AWK_FORBIDDEN = re.compile(
    r"\b(system|getline|ENVIRON|PROCINFO|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|extension|include|load|namespace)\b|@"
)
_AWK_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t]|\\\n|#[^\n]*)+)|[A-Za-z_]\w*|[\d.]+|\"(?:[^\"\\\n]|\\.)*\"|\|\||[^\"/]", re.DOTALL
)
_AWK_REGEX = re.compile(r"/(?:[^/\\\n]|\\.)*/")
_AWK_KEYWORDS = frozenset("print printf return in if else while do case delete BEGIN END".split())
_MOST_DOUBTS = 4  # slashes that may divide or open a regular expression; both readings of each are tried


def awk_problem(program: str) -> str:
    """The reason why an awk program may do more than compute and print."""
    if found := _AWK_FORBIDDEN.search(program):
        return f"awk can do more than print with {found[0]}"
    is_clean = _awk_is_clean(program, 0, before="", is_printing=False, nesting=0, doubts=0)
    return "" if is_clean else "the awk program may write or run something"


def _awk_is_clean(text: str, at: int, *, before: str, is_printing: bool, nesting: int, doubts: int) -> bool | None:
    """True if no pipe and no output redirection follows; None if the text cannot be read in this way.

    `before` is the preceding part. A `>` behind `print` and outside of parentheses (`nesting`) writes a file.
    """
    while at < len(text):
        if text[at] == "/":
            regex = _AWK_REGEX.match(text, at)
            if regex and regex[0].rfind("[") > regex[0].rfind("]"):
                return False  # versions of awk disagree on a slash in brackets
            is_value = before == "]" or re.match(r"[\w\"]", before) is not None
            if before in (")", "$", "+", "-"):
                if doubts >= _MOST_DOUBTS:
                    return False
                readings = [
                    _awk_is_clean(text, then, before=as_, is_printing=is_printing, nesting=nesting, doubts=doubts + 1)
                    for then, as_ in ((at + 1, "/"), *(((regex.end(), "0"),) if regex else ()))
                ]
                known = [reading for reading in readings if reading is not None]
                return all(known) if known else None
            if is_value and before not in _AWK_KEYWORDS:
                at, before = at + 1, "/"
            elif regex:
                at, before = regex.end(), "0"
            else:
                return None
            continue
        found = _AWK_TOKEN.match(text, at)
        if not found:
            return None
        at, part = found.end(), found[0]
        if found["blank"]:
            continue
        if part == "|" or (part == ">" and is_printing and nesting <= 0):
            return False
        if part in ("print", "printf"):
            is_printing, nesting = True, 0
        elif part in (";", "{", "}"):  # not the newline: behind `,`, `&&` and some others it ends nothing
            is_printing, nesting = False, 0
        elif part in ("(", "["):
            nesting += 1
        elif part in (")", "]"):
            nesting -= 1
        before = part
    return True


_JQ_FORBIDDEN = re.compile(
    r"(?<![.\w])(env|input_filename|import|include|modulemeta|get_search_list)\b|\$(ENV|__prog_args)\b"
)
_JQ_CUT_VARIABLE = re.compile(r"\$[\s#]")  # `$ ENV` is `$ENV`, and a comment may stand in between


def jq_problem(program: str) -> str:
    """The reason why a jq program may do more than compute: `env` shows the environment, `import` reads other files."""
    if _JQ_CUT_VARIABLE.search(program) and ("ENV" in program or "__prog_args" in program):
        return "jq can show the environment with $ENV"
    found = _JQ_FORBIDDEN.search(program)
    return f"jq can do more than compute with {found[0]}" if found else ""
