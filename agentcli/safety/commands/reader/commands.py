"""Reads a command line into the simple commands that bash would run (bash(1), SHELL GRAMMAR).

It understands lists, pipelines, subshells, redirections, here-documents without expansions, and assignments before a
command. It does not understand loops, conditions, functions and the like: it notes a problem, skips their keywords, and
so finds the simple commands in them too. It reads any text to its end.
"""

import re

from agentcli.safety.commands.reader import syntax
from agentcli.safety.commands.reader.syntax import CommandNode, Field, Pipeline, Redirect, Script

_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\||\n|\(|\)|\Z")
_JOINING = ("&&", "||", "|", "|&")  # a command must follow these
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_SKIPPED = frozenset("if then elif else fi while until do done esac { } coproc".split())
_CONSTRUCTS = {"if": "an if", "case": "a case", "[[": "a [[ test", "function": "a function", "{": "a group { }"} | {
    word: f"a {word} loop" for word in ("for", "while", "until", "select")
}
_BLANK = re.compile(r"[ \t]+|\\\n|#[^\n]*")  # blanks, continued lines, comments
_NAME_OF_COPROCESS = re.compile(r"[ \t]+\w+[ \t]+(?=\(|(?:\{|if|while|until|for|case|select|\[\[)\s)")
_NAME_OF_FUNCTION = re.compile(r"[ \t]+[^\s()]+(?:[ \t]*\([ \t]*\))?")


class CommandReader(syntax.WordReader):
    """Reads all the simple commands in a text. With a `problem`, more may run than these commands."""

    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.commands: Script = ()
        self.loop_words: list[Field] = []  # the words that `for` and `select` iterate over, of all loops
        self.has_function = False  # True if the text defines a function
        self.is_complete = True  # False if a part was not read because it is nested too deeply
        # The here-documents whose text comes after the current line, each with the delimiter that ends it.
        self._here_documents: list[tuple[Redirect, str]] = []
        self._open_cases = 0  # the number of `case` commands that are open

    def read_script(self, closing: str = "") -> Script:
        """Read the commands up to the end of the text; with `closing`, up to and including a `)`."""
        # The same reader reads the scripts in parentheses, so what belongs to the commands around them is set aside.
        outer_documents, outer_cases, outer_substitutions = self._here_documents, self._open_cases, self.substitutions
        self._here_documents, self._open_cases, self.substitutions = [], 0, []
        pipelines: list[Pipeline] = []
        operator = ""  # the one after the pipeline that was read last
        while True:
            parts, operator = self._read_pipeline(operator, outer_documents_pending=bool(outer_documents))
            if operator == ")" and self._open_cases > 0:  # it ends a pattern of the `case`, which is no command
                parts, operator = [], ";"
            elif operator == ")" and not closing:  # it is stray, so the loop goes on after it
                self._note_syntax_error("a ')' has no '(' before it")
            elif operator.startswith((";;", ";&")):
                self._note("it contains a case")
            if parts:
                pipelines.append(Pipeline(tuple(parts), operator))
            if operator == "" or (operator == ")" and closing):  # the end of the text, or of these parentheses
                break
        if operator != closing:
            self._note_syntax_error(") is missing")
        if self._here_documents:
            self._note("the text of a here-document is missing")
        # Each command has taken the substitutions in its words. Arrays and here-documents are read after their command,
        # so theirs are left, and run as well.
        pipelines += [each for script in self.substitutions for each in script]
        self._here_documents, self._open_cases, self.substitutions = outer_documents, outer_cases, outer_substitutions
        return tuple(pipelines)

    def _read_pipeline(self, operator_before: str, *, outer_documents_pending: bool) -> tuple[list[CommandNode], str]:
        """Read commands joined by `|`, if any, and return them with the operator after the last one."""
        parts: list[CommandNode] = []
        while True:
            part = self._read_pipeline_part()
            parts += [part] if part is not None else []
            found = _OPERATOR.match(self.text, self.at)
            assert found  # a part ends only before an operator, or at the end of the text
            self.at, operator = found.end(), found[0]
            lacks_command = part is None and operator_before in _JOINING  # nothing has followed that operator yet
            if (part is None and operator in (*_JOINING, ";", "&")) or (lacks_command and operator in ("", ")")):
                self._note_syntax_error(f"a command is missing before {operator or 'the end'!r}")
            if operator == "\n":
                self._read_here_documents(outer_documents_pending=outer_documents_pending)
            if operator in ("|", "|&"):
                operator_before = operator
            elif operator == "(":
                self._handle_parenthesis(parts)
            elif not (operator == "\n" and lacks_command):  # a command may follow `|` or `&&` in the next line
                return parts, operator

    def _read_here_documents(self, *, outer_documents_pending: bool) -> None:
        """Read the texts of the here-documents that began in the line before, and make them the redirections' targets.

        `outer_documents_pending`: commands around this script have begun here-documents whose texts have yet to come.
        That is noted as a problem, because it is uncertain which lines belong to which here-document: bash reads the
        outer texts here if this script is a subshell, but after its end if it is a substitution.
        """
        if outer_documents_pending:
            self._note("a here-document begins within another command")
        for redirect, delimiter in self._here_documents:
            tabs = "\t*" if redirect.operator == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(delimiter)}(\n|\Z)", re.MULTILINE).search(self.text, self.at)
            if end is None:
                self._note("a here-document has no end")
            start, self.at = self.at, end.end() if end else len(self.text)
            text = self.text[start : end.start() if end else None]
            is_expanded = redirect.target.text == syntax.UNKNOWN_TEXT  # set by `_read_redirection`
            if is_expanded and re.search(r"[$`\\]", text):
                self._note("a here-document is expanded")
                # It is expanded like a double-quoted word. Quotes in it are ordinary, so only the added one ends it.
                body = CommandReader(text.replace('"', " ") + '"', self.depth + 1)
                body._read_double_quotes()
                self.substitutions += body.substitutions
                text = syntax.UNKNOWN_TEXT
            redirect.target = Field(re.sub(r"(?m)^\t+", "", text) if tabs else text)
        self._here_documents = []

    def _handle_parenthesis(self, parts: list[CommandNode]) -> None:
        """Handle a `(` that comes after words: it belongs to a function or an array, or is a syntax error."""
        if parts and len(parts[-1].words) == 1 and self._next_is(")"):
            parts.pop()
            self.at += 1
            self._note("it defines a function")
            self.has_function = True
        elif self.text[self.at - 2 : self.at - 1] == "=":  # `name=(`
            parts.pop()
            self._note("it uses an array")
            self._skip_words(")")
        elif self.depth >= syntax.MAX_DEPTH:
            self._note("it is nested too deeply")  # the commands inside are read as if there were no parenthesis
        else:
            if parts and parts[-1].words_text.startswith("time"):  # for bash, `time (x)` is no syntax error
                self._note("it times a subshell")
            self._note_syntax_error("a '(' is in the middle of a command")
            self.at -= 1  # the parenthesis is read again, as the start of a subshell

    def _read_pipeline_part(self) -> CommandNode | None:
        """Read the next simple command or subshell, up to an operator; None if there is nothing before the operator."""
        outer_substitutions, self.substitutions = self.substitutions, []
        node = CommandNode()
        is_negated = False
        self._skip_blanks()
        command_start = self.at
        while True:
            self._skip_blanks()
            word_start = self.at
            if self._read_redirection(node.redirects):
                continue
            if self._next_is("(") and node.is_empty and self.depth < syntax.MAX_DEPTH:
                self.at += 1
                node.subshell = self._read_script_in_parentheses()
                continue
            if self.at >= len(self.text) or self.text[self.at] in "\n;&|()":
                break
            field = self._read_word()
            raw = self.text[word_start : self.at]
            names_descriptor = raw.startswith("{") or (raw.isascii() and raw.isdigit())  # `2>x`, `{name}>x`
            if names_descriptor and self._next_is(("<", ">")):
                if raw.startswith("{"):
                    self._note("a redirection sets a variable")
                self._read_redirection(node.redirects, descriptor=raw)
            elif node.is_empty and raw == "!":
                is_negated = True
            elif node.is_empty and self._skip_reserved(raw):
                command_start = self.at  # the command begins after `if`, `do` and the like
            else:
                self._add_word(node, field, raw)
        node.substitutions, self.substitutions = self.substitutions, outer_substitutions
        if node.is_empty and not node.substitutions and not is_negated:
            return None
        if node.subshell is not None and node.words:
            self._note("words follow a subshell")
        if node.assignments and not node.words:
            self._note("it sets a variable")
        node.text = self.text[command_start : self.at].strip(" \t")
        return node

    def _add_word(self, node: CommandNode, field: Field, raw: str) -> None:
        """Add a word, written as `raw`: an assignment if it looks like one and no other word precedes it."""
        if node.words or not (found := _ASSIGNMENT.match(raw)):
            node.words.append(field)
            node.words_text += f" {raw}" if node.words_text else raw
            return
        if found[2] or found[3]:
            self._note("it changes a part of a variable")
        value = Field(field.text[found.end() :], may_vanish=field.may_vanish)
        node.assignments.append((found[1], value))

    def _read_script_in_parentheses(self) -> Script:
        """Read the commands after a `(`. For an arithmetic expression, `((…))`, return only those of substitutions."""
        begins_with_two = self._next_is("(")  # an arithmetic expression, or a subshell in a subshell
        if begins_with_two:
            self._note("it computes")
        self.depth += 1
        script = self.read_script(")")
        self.depth -= 1
        is_single_command = len(script) == 1 and len(script[0].parts) == 1
        is_arithmetic = begins_with_two and is_single_command and self._next_is("))", -2)  # what was just read
        return _substitutions_in(script) if is_arithmetic else script

    def _read_script_in(self, text: str) -> Script:
        """Read the commands in a part of a word, such as those in backquotes."""
        if self.depth >= syntax.MAX_DEPTH:
            self._note("it is nested too deeply")
            self.is_complete = False
            return ()
        inner = CommandReader(text, self.depth + 1)
        script = inner.read_script()
        self.is_complete = self.is_complete and inner.is_complete
        return script

    def _skip_reserved(self, word: str) -> bool:
        """Skip a reserved word of a compound command, and any words after it that do not begin a command."""
        if word == "[[":
            self._skip_words("]]")
        elif word in ("for", "select"):
            self._skip_words(";")
        elif word == "case":
            self._open_cases += 1
            self._skip_words("in")
        elif word in ("function", "coproc"):
            self.has_function = self.has_function or word == "function"
            name = _NAME_OF_FUNCTION if word == "function" else _NAME_OF_COPROCESS
            if found := name.match(self.text, self.at):
                self.at = found.end()
        elif word == "esac":
            self._open_cases -= 1
        elif word not in _SKIPPED:
            return False
        self._note(f"it contains {_CONSTRUCTS.get(word, word)}")
        return True

    def _skip_words(self, closing: str) -> None:
        """Skip the words up to and including `closing`: `]]`, the `in` of a `case`, or the `)` of an array.

        With `;`, for `for` and `select`, stop before the `;` or the line's end, and add the words to `loop_words`.
        """
        while self.at < len(self.text):
            self._skip_blanks()
            start = self.at
            char = self.text[start : start + 1]
            if closing == ";" and char in (";", "\n"):
                return
            begins_word = char in ("<", ">") and self._next_is("(", 1)  # a substitution: `<(`
            if char and char in "\n;&|()<>" and not begins_word:
                self.at += 1
                if char == "\n":
                    self._read_here_documents(outer_documents_pending=False)  # callers note a problem in any case
            elif char:
                word = self._read_word()
                self.loop_words += [word] if closing == ";" else []
            if self.text[start : self.at] == closing:
                return

    def _read_redirection(self, redirects: list[Redirect], *, descriptor: str = "") -> bool:
        """Read a redirection and add it; return False if there is none at this position."""
        found = _REDIRECTION.match(self.text, self.at)
        if not found or self._next_is("(", 1):  # `<(` and `>(` are process substitutions
            return False
        operator, self.at = found[0], found.end()
        self._skip_blanks()
        start = self.at
        target = self._read_word()
        raw = self.text[start : self.at]
        if not raw:
            self._note_syntax_error("a redirection has no target")
            return True
        redirects.append(Redirect(operator, target, descriptor))
        if operator in ("<<", "<<-"):
            if not target.is_known or re.search(r"[$`\n]", raw):
                self._note("agentcli can't predict where a here-document ends")
            is_literal = re.search(r"[\\'\"]", raw) is not None  # a quoted delimiter prevents expansion
            self._here_documents.append((redirects[-1], target.text if is_literal else raw))
            # Only until `_read_here_documents` sets the text; `UNKNOWN_TEXT` tells it that the document is expanded.
            redirects[-1].target = Field("" if is_literal else syntax.UNKNOWN_TEXT)
        return True

    def _skip_blanks(self) -> None:
        while found := _BLANK.match(self.text, self.at):
            if found[0] == "\\\n" and self.at and self.text[self.at - 1] not in " \t\n":
                self._note("a line is continued in the middle of a word")
            self.at = found.end()


def _substitutions_in(script: Script) -> Script:
    parts = [part for pipeline in script for part in pipeline.parts]
    own = [pipeline for part in parts for inner_script in part.substitutions for pipeline in inner_script]
    return (*own, *(pipeline for part in parts for pipeline in _substitutions_in(part.subshell or ())))


def read_commands(text: str) -> CommandReader:
    """Return the reader that has read a whole text, with its `commands` and any `problem`."""
    reader = CommandReader(text)
    reader.commands = reader.read_script()
    return reader
