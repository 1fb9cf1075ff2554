"""Takes the wrappers off a simple command, writes it in the forms that permission rules match, and follows what goes on
around it: scripts that it is handed, redirections, variables, changes of folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from agentcli.safety.commands.arguments import git_words
from agentcli.safety.commands.effects import effects_of_redirect
from agentcli.safety.commands.paths import ReadCheck, is_system_path
from agentcli.safety.commands.reader.syntax import HERE, HOLE, HOME, Field, Redirect, Script, State, name_of
from agentcli.safety.commands.reader.words import unescape
from agentcli.safety.commands.reads import read_call
from agentcli.safety.commands.records import Effects
from agentcli.safety.commands.refused import catastrophe, write_catastrophe
from agentcli.safety.commands.wrappers import Wrapper, take_off


def canonical(fields: Sequence[Field]) -> str:
    """The words joined by blanks, quoted if they contain one: `'git log' x` is not `git log x`."""
    return " ".join(_typed(field) for field in fields)


def _typed(field: Field) -> str:
    return field.text if field.text and not re.search(r"\s", field.text) else shlex.quote(field.text)


def allow_forms(layers: Iterable[Sequence[Field]]) -> tuple[str, ...]:
    """The forms a granting rule may match: the words, and those left when each harmless wrapper is taken off."""
    forms = []
    for fields in layers:
        forms.append(canonical(fields))
        if (bare := _without_git_options(fields)) is not None:
            forms.append(canonical(bare))
    return tuple(dict.fromkeys(forms))


def with_assignments(assignments: Sequence[tuple[str, Field]], fields: Sequence[Field]) -> tuple[str, ...]:
    """`NODE_ENV=test npm test`: if a variable matters, a granting rule must name it too."""
    if not all(value.is_known and HOME not in value.text and HERE not in value.text for _, value in assignments):
        return ()
    words = [f"{name}={value.text}" for name, value in assignments]
    return tuple(" ".join((*words, form)) for form in allow_forms([fields])) if words else ()


def deny_forms(fields: Sequence[Field]) -> tuple[str, ...]:
    """The forms a refusing rule may match: also unquoted, with the bare program name, and without options of git."""
    plain = " ".join(field.text for field in fields)
    forms = [canonical(fields), plain]
    if fields:
        name = fields[0].text.rpartition("/")[2]
        rest = plain[len(fields[0].text) :]
        forms += [name + rest, name.lower() + rest]
        if name.lower() == "git" and (bare := _without_git_options([Field("git"), *fields[1:]], strict=False)):
            forms.append(" ".join(field.text for field in bare))
    return tuple(dict.fromkeys(form for form in forms if form))


def _without_git_options(fields: Sequence[Field], *, strict: bool = True) -> list[Field] | None:
    """`git --no-pager log` as `git log`. `strict` drops only options that redirect nothing and run nothing."""
    if len(fields) < 3 or fields[0].text != "git" or not fields[1].text.startswith("-"):
        return None
    if strict:
        call = read_call(fields[1:])
        return [fields[0], *call.words] if call.words and not call.problem and not call.folders else None
    rest = git_words(fields)
    return [fields[0], *rest] if rest else None


_MAX_LAYERS = 12
_TOO_MANY_WRAPPERS = "it has too many wrappers"


class ProgramCall(Struct, kw_only=True):
    """A simple command without the wrappers around it, such as `sudo` or `timeout 5`.

    `layers` are its words, first with all wrappers, last with none; `wrappers` are what was taken off between two of
    them. `catastrophe` says why it must never run. `forms` are the texts that refusing rules match. `candidates` are
    other commands that it may run, because a wrapper cannot be read. `hides_program` is true if the text does not show
    which program runs. `unjudged` says why a part of it was not looked at.
    """

    layers: list[tuple[Field, ...]]
    wrappers: list[Wrapper] = []
    catastrophe: str = ""
    forms: list[str] = []
    candidates: list[ProgramCall] = []
    hides_program: bool = False
    unjudged: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The words of the program that runs in the end."""
        return self.layers[-1]

    @property
    def name(self) -> str:
        return name_of(self.fields)

    @property
    def problem(self) -> str:
        """The reason why the wrappers may do more than run the command; an empty string if they do not."""
        return next((layer.problem for layer in self.wrappers if layer.problem), "")

    @property
    def script(self) -> Wrapper | None:
        """The wrapper that runs a text, if the command is one, such as `sh -c`."""
        return self.wrappers[-1] if self.wrappers and self.wrappers[-1].script is not None else None

    @property
    def reads_script(self) -> bool:
        """True if a shell reads its commands from its input."""
        return any(layer.reads_script for layer in self.wrappers)

    @property
    def script_files(self) -> list[Field]:
        """The files from which it, or a command that it may run, reads a script."""
        own = [file for layer in self.wrappers for file in layer.script_files]
        return own + [file for candidate in self.candidates for file in candidate.script_files]

    @property
    def possible_commands(self) -> list[tuple[Field, ...]]:
        """The words of all commands that it may run, each with and without its wrappers."""
        return [words for call in self.candidates for words in (*call.layers, *call.possible_commands)]

    @property
    def possible_scripts(self) -> list[str]:
        """The texts that its candidates give to a shell."""
        scripts = []
        for call in self.candidates:
            scripts += call.possible_scripts
            if call.script is not None and call.script.script:
                scripts.append(call.script.script)
        return scripts


def unwrap(fields: Sequence[Field], state: State, depth: int = 0) -> ProgramCall:
    """Take off all wrappers. `fields` is not empty."""
    call = ProgramCall(layers=[tuple(fields)])
    for _ in range(_MAX_LAYERS):
        program = call.fields[0]
        call.catastrophe = call.catastrophe or catastrophe(call.fields, state)
        call.forms += deny_forms(call.fields)
        call.hides_program = call.hides_program or not program.is_known or program.is_glob
        if call.name == "parallel":
            call.hides_program = True
            for start in range(1, min(len(call.fields), _MAX_LAYERS)):
                call.forms += deny_forms(call.fields[start:])
        layer = take_off(call.fields)
        if layer is None:
            return call
        call.wrappers.append(layer)
        for candidate in layer.candidates:
            _add_candidate(candidate, call, state, depth)
        if layer.script is not None:
            return call
        if not layer.inner:
            call.hides_program = call.hides_program or layer.hides_program
            return call
        call.layers.append(layer.inner)
    call.unjudged = _TOO_MANY_WRAPPERS
    call.wrappers.append(Wrapper(problem=_TOO_MANY_WRAPPERS))
    return call


def _add_candidate(fields: Sequence[Field], call: ProgramCall, state: State, depth: int) -> None:
    if depth > 3:
        call.unjudged = _TOO_MANY_WRAPPERS
        return
    inner = unwrap(fields, state, depth + 1)
    call.candidates.append(inner)
    call.catastrophe = call.catastrophe or inner.catastrophe
    call.forms += inner.forms
    call.hides_program = call.hides_program or inner.hides_program
    call.unjudged = call.unjudged or inner.unjudged


def input_of(redirects: Sequence[Redirect], given: str, state: State) -> str:
    """The text that a command can read: from its redirections, else `given`, the input of those around it."""
    for redirect in reversed(redirects):
        if redirect.operator in ("<<", "<<-", "<<<"):
            return state.resolved(redirect.target).text
        if redirect.operator.startswith("<") and redirect.target.text != "/dev/null":
            return HOLE
    return given


def printed_by(fields: Sequence[Field], given: str) -> str:
    """The text that a command prints; `HOLE` if it cannot be told."""
    words = [HOLE if field.is_glob else field.text for field in fields]
    match words:
        case ["cat"] | ["cat", "-"]:
            return given
        case ["echo", *rest] if not re.match(r"-[neE]+ ", " ".join((*rest, ""))) and "\\" not in "".join(rest):
            return " ".join(rest) + "\n"
        case ["printf", form] if "%" not in form and not form.startswith("-"):
            return unescape(form) or HOLE
        case ["printf", "%s" | "%s\\n", *texts]:
            return "\n".join(texts)
    return HOLE


def printed_by_script(script: Script, state: State) -> str:
    """The text that a substituted script prints, if it is one simple command or pipeline."""
    given = ""
    for part in script[0].parts if len(script) == 1 else ():
        fields = [state.resolved(word) for word in part.words]
        given = printed_by(fields, input_of(part.redirects, given, state))
    return given or HOLE


_AWK_TEXT = r"\"((?:[^\"\\\0]|\\[^\0])*)\""
# The scripts in the arguments of other programs, joined by NUL.
_RUNS_TEXT = {
    **dict.fromkeys(("awk", "gawk", "mawk"), rf"system\s*\(\s*{_AWK_TEXT}|\|&?\s*{_AWK_TEXT}|{_AWK_TEXT}\s*\|"),
    **dict.fromkeys(("mapfile", "readarray", "complete", "compgen"), r"\0-C\0?([^\0]*)"),
    "alias": r"=([^\0]*)",
    "git": r"\0(?:-c\0[^\0=]*(?i:alias\.|pager|editor|command|cmd|external|fsmonitor|askpass|program)[^\0=]*=!?"
    r"|rebase\0(?:.*\0)?(?:-x\0?|--exec[=\0]))([^\0]*)"
    r"|\0(?:submodule\0(?:--?\w+\0)*foreach\0(?:--?\w+\0)*|bisect\0run\0)(.*)",
    "tar": r"(?:\bexec=|\0--to-command[=\0]|\0--use-compress-program[=\0]|\0-\w*I\0?)([^\0]*)",
}
# Text that may make a name mean another program, and subscripts, where bash expands even what was quoted.
_RENAMES = re.compile(
    r"alias\0[^\0]*=|hash\0-\w*p|enable\0-\w*f|(?:declare|typeset|local)\0(?:.*\0)?-\w*n|shift(?:\0|$)|.*\0--config-env"
    r"|(?:let|test|\[|printf|unset|read|declare|typeset|local|export|readonly)\0.*\w\[[^\[\]\0]*(?:\$\(|`)",
    re.DOTALL,
)


def scripts_of(call: ProgramCall, given: str) -> Iterator[str]:
    """The scripts a command may run besides those among its words. `given` is its input."""
    files = call.script_files
    if call.hides_program or any(not file.is_known for file in files):
        yield HOLE
    if given and (
        call.reads_script or any(file.text.startswith(("/dev/", "/proc/")) or file.text == "-" for file in files)
    ):
        yield given
    joined = "\0".join(field.text for field in call.fields)
    for found in re.finditer(_RUNS_TEXT.get(call.name, r"(?!)"), joined):
        text = next(filter(None, found.groups()), "")
        yield text.replace('\\"', '"').replace("\0", " ")
        if call.name == "git" and "alias." in found[0] and "=!" not in found[0]:
            yield f"git {text}"
    if _RENAMES.match(joined):
        yield HOLE


class Redirected(Struct, frozen=True):
    """The effect of redirections. `connects`: one leads to another machine."""

    problem: str = ""
    catastrophe: str = ""
    effects: Effects = Effects()
    connects: bool = False


def judge_redirects(redirects: Iterable[Redirect], state: State, check: ReadCheck) -> Redirected:
    """Reading is judged like an operand. Writing is harmless only into places that keep nothing."""
    problem, catastrophe, effects, connects = "", "", Effects(), False
    for redirect in redirects:
        target = state.resolved(redirect.target)
        is_copy = redirect.operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.text)
        if is_copy or redirect.operator in ("<<", "<<-", "<<<"):
            continue
        if why := _target_problem(redirect.operator, target, check):
            problem = problem or why
            effects = effects | effects_of_redirect(redirect.operator, target, state)
        if redirect.operator != "<":
            catastrophe = catastrophe or write_catastrophe(target)
        connects = connects or target.text.startswith(("/dev/tcp/", "/dev/udp/"))
    return Redirected(problem, catastrophe, effects, connects)


def _target_problem(operator: str, target: Field, check: ReadCheck) -> str:
    if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
        return "it opens a connection"
    if target.is_glob or target.may_vanish:
        return "where a redirection leads cannot be told"
    if operator == "<":
        return check.problem([target], "content")
    is_sink = target.text in ("/dev/null", "/dev/stdout", "/dev/stderr")
    return "" if is_sink else f"it writes {target.text if target.is_known else 'a file'}"


# Environment variables that only change how something is shown, and the values they may get.
_SHOWN_ONLY = re.compile(
    r"(LC_[A-Z]+|LANG|LANGUAGE|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|TERM|CI|RUST_BACKTRACE"
    r"|GIT_OPTIONAL_LOCKS|GIT_TERMINAL_PROMPT|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE)=[\w.@-]*"
    r"|TZ=\w*(/\w+)?|(GIT_)?PAGER=(cat)?"
)


def variable_problem(assignments: Iterable[str]) -> str:
    """The reason why assignments such as `NAME=value` may matter to a program; an empty string if they do not."""
    for assignment in assignments:
        if not _SHOWN_ONLY.fullmatch(assignment):
            return f"{assignment.partition('=')[0]} may matter to programs"
    return ""


def states_after(call: ProgramCall, state: State) -> tuple[State, State]:
    """The state after the command succeeded, and after it failed."""
    arguments: Sequence[Field] = call.fields[1:]
    if call.name in ("popd", "source", ".", "eval"):
        return state.anywhere(), state.anywhere()
    if call.name not in ("cd", "pushd"):
        return state, state
    targets = [field for field in arguments if field.text not in ("-L", "-P", "--")]
    if not targets and call.name == "cd" and state.home is not None:
        targets = [Field(state.home)]
    if len(targets) != 1 or targets[0].text[:1] in ("-", "+"):
        return state.anywhere(), state
    return state.entering(targets[0]), state


_DELETING = frozenset("rm rmdir unlink srm shred truncate dd wipefs find chmod chown chgrp".split())


def deletes_unseen(fields: Sequence[Field], state: State) -> str:
    """Return the reason why a command may delete more than its text tells; an empty string if there is none."""
    if not fields[0].is_known:
        is_grave = any(is_system_path(field, state) for field in fields[1:])
        return "what it runs on a system folder cannot be told" if is_grave else ""
    name = name_of(fields)
    is_unseen = name in _DELETING and not all(field.is_known for field in fields)
    return f"what {name} changes cannot be told" if is_unseen else ""
