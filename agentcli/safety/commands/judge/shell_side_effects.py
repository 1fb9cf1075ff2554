"""Judges what a simple command does besides running its program: redirections, variables, changes of folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from agentcli.safety.commands.judge.calls import Call
from agentcli.safety.commands.judge.catastrophe import write_catastrophe
from agentcli.safety.commands.programs.effects import effects_of_redirect
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.expansion import LONGEST_VALUE, Field, Number, Secret, State, Value, is_number
from agentcli.safety.commands.reader.substitution import fields_of, word_problem
from agentcli.safety.commands.reader.syntax import Arithmetic, Assignment, Command, Literal, Redirect, Variable, Word
from agentcli.safety.commands.records import Effects

_SINKS = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))


class Redirected(Struct, frozen=True):
    """The effect of redirections. `connects`: one leads to another machine."""

    problem: str = ""
    catastrophe: str = ""
    effects: Effects = Effects()
    connects: bool = False
    is_only_assigned: bool = False

    def with_problem(self, problem: str, *, is_only_assigned: bool) -> Redirected:
        """Add a problem found elsewhere. `is_only_assigned`: the only problem is variables that the command sets."""
        return Redirected(problem, self.catastrophe, self.effects, self.connects, is_only_assigned)


def judge_redirects(redirects: Sequence[Redirect], state: State, check: ReadCheck) -> Redirected:
    """Reading is judged like an operand. Writing is harmless only into places that keep nothing."""
    problem, catastrophe, effects, connects = "", "", Effects(), False
    for redirect in redirects:
        if isinstance(redirect.descriptor, str):
            problem = problem or f"a redirection sets {redirect.descriptor}"
        if redirect.operator in ("<<", "<<-", "<<<"):
            problem = problem or word_problem(redirect.target, state)
            problem = problem or check.problem(fields_of([redirect.target], state), "here")
            continue
        fields = fields_of([redirect.target], state)
        if len(fields) != 1:
            problem = problem or "where a redirection leads cannot be told"
            continue
        (target,) = fields
        if redirect.operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.text):
            continue
        why = _target_problem(redirect.operator, target, check)
        if why:
            problem = problem or why
            effects = effects | effects_of_redirect(redirect.operator, target, state)
        if redirect.operator != "<":
            catastrophe = catastrophe or write_catastrophe(target)
        connects = connects or target.text.startswith(("/dev/tcp/", "/dev/udp/"))
    return Redirected(problem, catastrophe, effects, connects)


def _target_problem(operator: str, target: Field, check: ReadCheck) -> str:
    if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
        return "it opens a connection"
    if operator == "<":
        return check.problem([target], "content") or ("what is read cannot be told" if target.may_vanish else "")
    return "" if target.text in _SINKS else f"it writes {target.text if target.is_known else 'a file'}"


# Environment variables that only change how something is shown, and the values they may get.
_SHOWN_ONLY = re.compile(
    r"(LC_[A-Z]+|LANG|LANGUAGE|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|TERM|CI|RUST_BACKTRACE"
    r"|GIT_OPTIONAL_LOCKS|GIT_TERMINAL_PROMPT|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE)=[\w.@-]*"
    r"|TZ=\w*(/\w+)?|(GIT_)?PAGER=(cat)?"
)
_OWN = re.compile(r"(?!\w*_proxy$)[a-z_][a-z0-9_]*")  # names that no program reads


def judge_assignments(node: Command, state: State) -> tuple[State, str]:
    """The state after assignments, and why they may matter to a program. A command's own end with it."""
    problem = ""
    for given in node.assignments:
        problem = problem or next((why for word in given.words if (why := word_problem(word, state))), "")
        if any(_may_have_subscript(word) for word in given.elements):
            problem = problem or "the subscript of an array's element may run a command"
        value = _assigned(given, state)
        is_for_read = bool(node.words) and given.name == "IFS" and node.words[0].text == "read"
        if not is_for_read and not may_set(f"{given.name}={value if isinstance(value, str) else '?'}"):
            problem = problem or f"{given.name} may matter to programs"
        if given.value is None:
            state = state.with_array(given.name, fields_of(given.elements, state), appends=given.appends)
        else:
            state = state.set(given.name, value)
    return state, problem


_PLAIN_SUBSCRIPT = re.compile(r"\[\d+\]\+?=")


def _may_have_subscript(element: Word) -> bool:
    """True if an element may be `[...]=x`: a subscript is an expression, so a variable's value can run a command."""
    text = element.text.replace("\\\n", "")
    is_assigned = text.startswith(("[", "{")) and ("]=" in text or "]+=" in text)
    return is_assigned and not _PLAIN_SUBSCRIPT.match(text)


def _assigned(given: Assignment, state: State) -> Value:
    """The value that a variable gets, unless it is an array."""
    if given.value is None:
        return None
    before = state.variables.get(given.name)
    fields = fields_of([given.value], state)
    if any(field.shows_secret for field in fields) or (given.appends and isinstance(before, Secret)):
        return Secret()
    text = " ".join(field.text for field in fields)
    if given.appends or _may_hold_home(given.value) or len(text) > LONGEST_VALUE:
        return None
    if Field(text).is_known:
        return text
    # If it cannot be computed, the variable keeps its value.
    is_number_now = given.name not in state.variables or is_number(before)
    pieces = [piece for piece in given.value.pieces if piece != Literal("", quoted=True)]
    is_computed = len(pieces) == 1 and isinstance(pieces[0], Arithmetic)
    return Number() if is_computed and is_number_now else None


def _may_hold_home(value: Word) -> bool:
    """True if a `~` stands where it may be expanded, other than at the beginning: `a:~`."""
    for at, piece in enumerate(value.pieces):
        match piece:
            case Literal(quoted=False) if "~" in (piece.text[1:] if at == 0 else piece.text):
                return True
            case Variable() if piece.argument is not None and "~" in piece.argument.text:
                return True
    return False


def may_set(assignment: str) -> bool:
    """True if `NAME=value` only changes how something is shown, or sets a variable that no program reads."""
    name, _, _ = assignment.partition("=")
    return _OWN.fullmatch(name) is not None or _SHOWN_ONLY.fullmatch(assignment) is not None


def name_problem(sets: Sequence[Field]) -> str:
    """The reason why variables that `env` sets may matter to a program."""
    for field in sets:
        if not field.is_known or not may_set(field.text):
            return f"{field.text.partition('=')[0]} may matter to programs"
    return ""


_SETS_VARIABLES = frozenset("read mapfile readarray getopts let printf source . eval set declare typeset".split())


def state_after(call: Call, state: State) -> tuple[State, State]:
    """The state after the command succeeded, and after it failed."""
    arguments = call.fields[1:]
    if call.name in ("cd", "pushd"):
        targets = [field for field in arguments if field.text not in ("-L", "-P", "--")]
        if not targets and call.name == "cd":
            targets = [Field(state.home)]
        if (
            len(targets) == 1
            and targets[0].is_known
            and not targets[0].is_glob
            and targets[0].text[:1] not in ("-", "+")
        ):
            return state.entering(targets[0].text), state
        return state.anywhere(), state
    if call.name == "set" and arguments and arguments[0].text == "--":
        return (after := state.with_parameters(call.fields[1:])), after
    if call.name in ("popd", "source", "."):
        return state.anywhere(), state.anywhere()
    if call.name in ("export", "readonly", "local", "declare", "typeset"):
        return (after := _declared(arguments, state)), after
    if call.name in ("read", "unset"):
        names = (field.text for field in arguments if not field.text.startswith("-"))
        for name in ("REPLY", *names):
            state = state.set(name, None)
        return state, state
    if call.name in _SETS_VARIABLES and not (call.name == "printf" and arguments and arguments[0].text[:1] != "-"):
        state = state.forgetting()
    return state, state


def _declared(arguments: Sequence[Field], state: State) -> State:
    for field in arguments:
        name, given, value = field.text.partition("=")
        if given:
            state = state.set(name, value if field.is_known and not field.is_glob else None)
    return state
