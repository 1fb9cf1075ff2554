"""Reads a command line into the simple commands that bash would run (bash(1), SHELL GRAMMAR).

Lists, pipelines, subshells, redirections, here-documents without expansions and assignments before a command are read.
Loops, conditions, functions and the like are not: the reader notes that, steps over their words and goes on, so that
the simple commands in them are seen too. It never gives up, whatever the text.
"""

from __future__ import annotations

import re

from agentcli.safety.commands.reader.syntax import (
    HOLE,
    Command,
    Field,
    Pipeline,
    Reading,
    Redirect,
    Script,
    Subshell,
)
from agentcli.safety.commands.reader.words import DEEPEST, WordReader


def read_commands(text: str) -> Reading:
    """Read a text. All commands that can be seen are there, whatever stands around them."""
    reader = CommandReader(text)
    script = reader.script()
    return Reading(script, reader.problem, reader.refusal, tuple(reader.listed))


_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\||\n|\(|\)|$(?!\n)")
_JOINING = ("&&", "||", "|", "|&")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_STEPPED_OVER = frozenset("if then elif else fi while until do done esac { } coproc".split())
_NAME_OF_COPROCESS = re.compile(r"[ \t]+\w+[ \t]+(?=\(|(?:\{|if|while|until|for|case|select|\[\[)\s)")
_NAMING = frozenset("for select case function".split())


class CommandReader(WordReader):
    """A cursor over one text."""

    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self._here: list[tuple[Redirect, str]] = []  # here-documents whose text is still to come
        self._named = ""  # a function whose body is to come
        self.listed: list[Field] = []
        self._cases = 0  # that are open
        self._bodies: list[str] = []  # names of the functions, or nothing, for each open brace

    def script(self, closing: str = "") -> Script:
        """The commands up to the end, or to a `)`, which is passed over."""
        pipelines: list[Pipeline] = []
        parts: list[Command | Subshell] = []
        before, outer, self._here, cases, self._cases = "", self._here, [], self._cases, 0
        outer_inside, self.inside = self.inside, []
        while True:
            part = self._part()
            if part is not None:
                parts.append(part)
            operator = self._operator()
            if part is None and (operator in (*_JOINING, ";", "&") or (before in _JOINING and operator in ("", ")"))):
                self._refuse(f"a command is missing before {operator or 'the end'!r}")
            if operator in ("|", "|&") or (operator == "\n" and part is None and before in _JOINING):
                before = before if operator == "\n" else operator
                self._end_line(operator, is_inside=bool(outer))
                continue
            if operator == "(":
                self._parenthesis(parts)
                continue
            if operator == ")" and self._cases > 0:
                parts, operator = [], ";"  # it was a pattern
            elif operator == ")" and not closing:
                self._refuse("')' stands where no command can end")
            elif operator.startswith((";;", ";&")):
                self._note("it uses a case")
            if parts:
                pipelines.append(Pipeline(tuple(parts), operator))
            parts, before = [], operator
            self.has_ended_line = self.has_ended_line or (operator == "\n" and bool(pipelines))
            self._end_line(operator, is_inside=bool(outer))
            if operator == "" or (operator == ")" and closing):
                if operator == "" and closing:
                    self._refuse(") is missing")
                if self._here:
                    self._note("the text of a here-document is missing")
                pipelines += [each for script in self.inside for each in script.pipelines]
                self._here, self.inside, self._cases = outer, outer_inside, cases
                return Script(tuple(pipelines))

    def _operator(self) -> str:
        """The operator that stands here, passed over; empty at the end."""
        found = _OPERATOR.match(self.text, self.at)
        if found is None:  # words behind a subshell
            return ";"
        self.at = found.end()
        return found[0]

    def _end_line(self, operator: str, *, is_inside: bool) -> None:
        if operator != "\n":
            return
        if is_inside:
            self._note("a here-document begins within another command")
        for redirect, delimiter in self._here:
            self._here_text(redirect, delimiter)
        self._here = []

    def _here_text(self, redirect: Redirect, delimiter: str) -> None:
        lines: list[str] = []
        while True:
            end = self.text.find("\n", self.at)
            line = self.text[self.at : end if end >= 0 else len(self.text)]
            is_last, self.at = end < 0, end + 1 if end >= 0 else len(self.text)
            bare = line.lstrip("\t") if redirect.operator == "<<-" else line
            if bare == delimiter:
                break
            lines.append(f"{bare}\n")
            if is_last:
                self._note("a here-document has no end")
                break
        text = "".join(lines)
        if redirect.target.text == HOLE and re.search(r"[$`\\]", text):
            self._note("a here-document is expanded")
            body = CommandReader(text.replace('"', " ") + '"', self.depth + 1)
            body._double_quoted()
            self.inside.append(Script(tuple(each for script in body.inside for each in script.pipelines)))
            text = HOLE
        redirect.target = Field(text)

    def _parenthesis(self, parts: list[Command | Subshell]) -> None:
        """A `(` behind words: of a function, an array, or a mistake."""
        last = parts.pop() if parts else None
        if isinstance(last, Command) and len(last.words) == 1 and self._next_is(")"):
            self.at += 1
            self._note("it defines a function")
            self._named = last.words[0].text
        elif self.text[self.at - 2 : self.at - 1] == "=":
            self._note("it uses an array")
            self._pass_words(")")
        else:
            if isinstance(last, Command) and last.words and last.words[0].text == "time":
                self._note("it times a subshell")
            if self.depth < DEEPEST:
                self.at -= 1
            else:
                self._note("it is nested too deeply")  # what stands inside is read as if it stood outside
            self._refuse("'(' stands where no command can begin")
            parts += [last] if last else []

    # Commands

    def _part(self) -> Command | Subshell | None:
        """The next part of a pipeline; None if there is none."""
        self._blanks()
        start = self.at
        outer, self.inside = self.inside, []
        assignments: list[tuple[str, Field]] = []
        words: list[Field] = []
        redirects: list[Redirect] = []
        written: list[str] = []
        is_negated = False
        while self.at < len(self.text):
            self._blanks()
            begin = self.at
            if self._redirection(redirects, ""):
                continue
            if self._next_is("(") and not (words or assignments or redirects) and self.depth < DEEPEST:
                return self._subshell(outer)
            if self.at >= len(self.text) or self.text[self.at] in "\n;&|()":
                break
            field = self._word()
            raw = self.text[begin : self.at]
            if self._next_is("<") or self._next_is(">"):
                if raw.startswith("{"):
                    self._note("a redirection sets a variable")
                    continue
                if raw.isascii() and raw.isdigit() and self._redirection(redirects, raw):
                    continue
            is_first = not (words or assignments or redirects)
            if is_first and raw == "!":
                is_negated = True
            elif is_first and self._is_reserved(raw):
                start = self.at
            elif not words and (found := _ASSIGNMENT.match(raw)):
                if found[2] or found[3]:
                    self._note("it changes a part of a variable")
                assignments.append((found[1], Field(field.text[found.end() :], False, field.may_vanish)))
            else:
                words.append(field)
                written.append(raw)
        inside, self.inside = self.inside, outer
        if not (words or assignments or redirects or inside or is_negated):
            return None
        text = self.text[start : self.at].strip(" \t")
        if assignments and not words:
            self._note("it sets a variable")
        return Command(
            text, " ".join(written), tuple(assignments), tuple(words), tuple(redirects), tuple(inside),
            next(filter(None, reversed(self._bodies)), ""),
        )  # fmt: skip

    def _subshell(self, outer: list[Script]) -> Subshell:
        start = self.at
        self.at += 1
        name, self._named = self._named, ""
        bodies = [*self._bodies]
        self._bodies.append(name)
        script = self._script_inside(start)
        self._bodies = bodies
        redirects: list[Redirect] = []
        self._blanks()
        while True:
            digits = re.compile(r"\d*(?=[<>])").match(self.text, self.at)
            if digits:
                self.at = digits.end()
            if not self._redirection(redirects, digits[0] if digits else ""):
                break
            self._blanks()
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|)":
            self._note("words follow a subshell")
        inside, self.inside = self.inside, outer
        return Subshell(script, tuple(redirects), tuple(inside))

    def _script_inside(self, start: int | None = None) -> Script:
        """Of `((…))`, which computes, only the scripts that are substituted in it."""
        start = self.at - 1 if start is None else start
        may_compute = self.text.startswith("((", start)
        if may_compute:
            self._note("it computes")
        self.depth += 1
        script = self.script(")")
        self.depth -= 1
        is_one = len(script.pipelines) == 1 and len(script.pipelines[0].parts) == 1
        if may_compute and is_one and self.text[self.at - 2 : self.at] == "))":
            return Script(tuple(_substituted(script)))
        return script

    def _script_of(self, text: str) -> Script:
        if self.depth >= DEEPEST:
            self._note("it is nested too deeply")
            return Script(())
        return CommandReader(text, self.depth + 1).script()

    def _is_reserved(self, word: str) -> bool:
        """Step over a reserved word of a compound command, and over the words behind it that are no command."""
        if word == "[[":
            self._note("it uses [[ ]]")
            self._pass_words("]]")
        elif word in _NAMING:
            self._note(f"it uses {word}")
            if word == "function":
                self._blanks()
                self._named = self._word().text
                self.at += 2 if self._next_is("()") else 0
            else:
                self._cases += word == "case"
                self._pass_words("in" if word == "case" else ";")
        elif word in _STEPPED_OVER:
            self._note("it uses a compound command")
            if word == "coproc" and (found := _NAME_OF_COPROCESS.match(self.text, self.at)):
                self.at = found.end()
            self._cases -= word == "esac"
            if word == "{":
                self._bodies.append(self._named)
                self._named = ""
            elif word == "}" and self._bodies:
                self._bodies.pop()
        else:
            return False
        return True

    def _pass_words(self, closing: str) -> None:
        """Pass over words and operators up to one, of which only `;` and a newline are left to be read."""
        while self.at < len(self.text):
            self._blanks()
            char = self.text[self.at : self.at + 1]
            if char == closing == ")":
                self.at += 1
                return
            if char in ("\n", ";") and closing == ";":
                return
            if char == "\n":
                self.at += 1
                self._end_line("\n", is_inside=False)
            elif char in tuple(";&|()") or (char in tuple("<>") and not self._next_is("(", 1)):
                self.at += 1
            elif char:
                start = self.at
                word = self._word()
                if self.text[start : self.at] == closing:
                    return
                self.listed += [word] if closing == ";" else []

    def _redirection(self, redirects: list[Redirect], descriptor: str) -> bool:
        """Read a redirection, if one stands here. `descriptor` are the digits before it."""
        found = _REDIRECTION.match(self.text, self.at)
        if not found or self.text[self.at + 1 : self.at + 2] == "(":
            return False
        operator = found[0]
        self.at = found.end()
        self._blanks()
        start = self.at
        target = self._word()
        if start == self.at:
            self._refuse("a redirection leads nowhere")
            return True
        redirect = Redirect(operator, descriptor, target)
        redirects.append(redirect)
        if operator in ("<<", "<<-"):
            raw = self.text[start : self.at]
            if not target.is_known or "$" in raw or "`" in raw or "\n" in raw:
                self._note("where a here-document ends cannot be told")
            is_literal = re.search(r"[\\'\"]", raw) is not None
            redirect.target = Field("" if is_literal else HOLE)
            self._here.append((redirect, target.text if is_literal else raw))
        return True

    def _blanks(self) -> None:
        """Pass over blanks, comments and ends of lines that are continued."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self._next_is("\\\n"):
                if self.at and self.text[self.at - 1] not in " \t\n":
                    self._note("a line is continued in the middle of a word")
                self.at += 2
            elif self._next_is("#"):
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            else:
                return


def _substituted(script: Script) -> list[Pipeline]:
    """The pipelines of all scripts that are substituted in the words of a script."""
    found: list[Pipeline] = []
    for pipeline in script.pipelines:
        for part in pipeline.parts:
            found += [each for inner in part.inside for each in inner.pipelines]
            if isinstance(part, Subshell):
                found += _substituted(part.script)
    return found
