"""Strips the wrappers from a simple command, writes it in the forms that rules match, and finds its side effects.

These are the scripts it is handed, its redirections, its variables, and the state in which it leaves the shell.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from agentcli.safety.commands.arguments import git_words
from agentcli.safety.commands.catastrophes import catastrophe, write_catastrophe
from agentcli.safety.commands.effects import effects_of_redirect
from agentcli.safety.commands.paths import ReadCheck, is_system_path
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field, Redirect, Script, State, name_of, unescape
from agentcli.safety.commands.reads import read_git_call
from agentcli.safety.commands.records import Effects
from agentcli.safety.commands.wrappers import HIDDEN_PROGRAM, Wrapper, find_wrapper


def canonical(fields: Sequence[Field]) -> str:
    """Return the words joined by blanks, each in quotes if it contains a blank: `'git log' x` is not `git log x`."""
    texts = [field.text for field in fields]
    return " ".join(text if text and not re.search(r"\s", text) else shlex.quote(text) for text in texts)


def allow_forms(layers: Iterable[Sequence[Field]]) -> tuple[str, ...]:
    """Return the forms that an allow rule may match: a command with its wrappers, then with one fewer at a time."""
    forms = []
    for fields in layers:
        forms.append(canonical(fields))
        if fields[0].text == "git":  # a rule need not name git options that change no folder and run no program
            call = read_git_call(fields[1:])
            if call.words and not call.problem and not call.folders:
                forms.append(canonical([fields[0], *call.words]))
    return tuple(dict.fromkeys(forms))


def allow_forms_with_assignments(assignments: Sequence[tuple[str, Field]], fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the forms of `NODE_ENV=test npm test`, whose variables matter, so that an allow rule must name them."""
    if not all(value.is_known and not value.needs_state for _, value in assignments):
        return ()
    words = [f"{name}={value.text}" for name, value in assignments]
    return tuple(" ".join((*words, form)) for form in allow_forms([fields]))


def deny_forms(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the forms that deny and ask rules match: also without quotes, the program's folder and git's options."""
    program, arguments = fields[0].text, "".join(f" {field.text}" for field in fields[1:])
    name = program.rpartition("/")[2]
    # In lower case too, because `RM` runs rm on a file system that ignores case, as on macOS.
    forms = [canonical(fields), program + arguments, name + arguments, name.lower() + arguments]
    if name.lower() == "git":
        forms.append(" ".join(["git", *(field.text for field in git_words(fields))]))
    return tuple(dict.fromkeys(form for form in forms if form))


_MAX_LAYERS = 12  # wrappers around one command
_MAX_CANDIDATE_DEPTH = 3  # of candidates inside candidates, whose number grows with each level
_TOO_MANY_WRAPPERS = "it has too many wrappers"
_DELETING = frozenset("rm rmdir unlink srm shred truncate dd wipefs find chmod chown chgrp".split())


class ProgramCall(Struct, kw_only=True):
    """A simple command without the wrappers around it, such as `sudo` or `timeout 5`.

    `candidates` are the commands that it may run if the options of a wrapper cannot be read.
    """

    layers: list[tuple[Field, ...]]  # its words: the first layer has all wrappers, the last one none
    wrappers: list[Wrapper] = []  # the wrappers between one layer and the next, outermost first
    catastrophe: str = ""  # why it must never run
    deny_forms: list[str] = []  # the texts that deny and ask rules match
    candidates: list["ProgramCall"] = []
    hides_program: bool = False  # True if the text does not show which program runs
    unjudged: str = ""  # why a part of it was not judged

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.layers[-1]  # the words without any wrapper

    @property
    def name(self) -> str:
        return name_of(self.fields)

    @property
    def problem(self) -> str:
        """The reason why the wrappers may do more than run the command."""
        return next((wrapper.problem for wrapper in self.wrappers if wrapper.problem), "")

    @property
    def shell(self) -> Wrapper | None:
        """The last wrapper, if it is a shell whose script is given as text, as after `sh -c`."""
        return self.wrappers[-1] if self.wrappers and self.wrappers[-1].script is not None else None

    @property
    def reads_script(self) -> bool:
        return any(wrapper.reads_script for wrapper in self.wrappers)  # True for a shell that runs its standard input

    @property
    def script_files(self) -> list[Field]:
        wrappers = [wrapper for call in (self, *self.candidates) for wrapper in call.wrappers]
        return [file for wrapper in wrappers for file in wrapper.script_files]

    @property
    def possible_commands(self) -> list[tuple[Field, ...]]:
        return [words for call in self.candidates for words in call.layers]  # each with and without its wrappers


def unwrap(fields: Sequence[Field], state: State, depth: int = 0) -> ProgramCall:
    """Take off the wrappers of a command one by one. Each layer is checked for catastrophes, and gives deny forms.

    So `sudo rm -rf /` counts as `rm -rf /` too. If a wrapper's options cannot be read, the commands that it may run,
    its candidates, are unwrapped as well. `fields` is not empty; `depth` counts the candidates around the command.
    """
    call = ProgramCall(layers=[tuple(fields)])
    for _ in range(_MAX_LAYERS):
        program = call.fields[0]
        call.catastrophe = call.catastrophe or catastrophe(call.fields, state)
        call.deny_forms += deny_forms(call.fields)
        call.hides_program = call.hides_program or not program.is_known or program.is_glob
        if call.name == "parallel":  # its command may begin at any word, and go on with words from its input
            call.hides_program = True
            starts = range(1, min(len(call.fields), _MAX_LAYERS))
            call.deny_forms += [form for start in starts for form in deny_forms(call.fields[start:])]
        wrapper = find_wrapper(call.fields)
        if wrapper is None:
            return call
        call.wrappers.append(wrapper)
        if depth <= _MAX_CANDIDATE_DEPTH:
            for candidate in wrapper.candidates:
                _add_candidate(call, unwrap(candidate, state, depth + 1))
        elif wrapper.candidates:
            call.unjudged = _TOO_MANY_WRAPPERS
        if not wrapper.inner:  # it runs a script, has no command, or its command cannot be read
            call.hides_program = call.hides_program or wrapper.problem == HIDDEN_PROGRAM
            return call
        call.layers.append(wrapper.inner)
    call.unjudged = _TOO_MANY_WRAPPERS
    call.wrappers.append(Wrapper(problem=_TOO_MANY_WRAPPERS))
    return call


def _add_candidate(call: ProgramCall, candidate: ProgramCall) -> None:
    call.candidates += [candidate, *candidate.candidates]
    call.catastrophe = call.catastrophe or candidate.catastrophe
    call.deny_forms += candidate.deny_forms
    call.hides_program = call.hides_program or candidate.hides_program
    call.unjudged = call.unjudged or candidate.unjudged


def stdin_text_of(redirects: Sequence[Redirect], outer_text: str, state: State) -> str:
    """Return the text of a command's standard input: that of a redirection, or else that of the input around it."""
    redirects = [each for each in redirects if each.descriptor.strip("0") == ""]  # `<x` or `0<x`, not `3<x`
    texts = [_text_of_input(each, state) for each in redirects]
    return [outer_text, *(text for text in texts if text is not None)][-1]  # the last redirection applies


def _text_of_input(redirect: Redirect, state: State) -> str | None:
    """Return the text that a redirection gives to its descriptor; None if it redirects an output."""
    if redirect.operator in ("<<", "<<-", "<<<"):
        return state.expand(redirect.target).text
    if not redirect.operator.startswith("<"):
        return None
    return "" if redirect.target.text == "/dev/null" else UNKNOWN_TEXT


def printed_by(fields: Sequence[Field], stdin_text: str) -> str:
    """Return the text that a command prints, which a shell may then run; `UNKNOWN_TEXT` if it cannot be predicted."""
    match [UNKNOWN_TEXT if field.is_glob else field.text for field in fields]:
        case ["cat"] | ["cat", "-"]:
            return stdin_text
        case ["echo", *texts] if not re.match(r"-[neE]+( |\Z)", " ".join(texts)) and "\\" not in "".join(texts):
            return " ".join(texts) + "\n"
        case ["printf", form] if "%" not in form and not form.startswith("-"):
            return unescape(form) or UNKNOWN_TEXT
        case ["printf", "%s" | "%s\\n", *texts]:
            return "\n".join(texts)
    return UNKNOWN_TEXT


def printed_by_script(script: Script, state: State) -> str:
    """Return the text that a substituted script prints; `UNKNOWN_TEXT` if it is more than a command or pipeline."""
    printed = ""  # by the command before
    for part in script[0].parts if len(script) == 1 else ():
        stdin_text = stdin_text_of(part.redirects, printed, state)
        printed = printed_by([state.expand(word) for word in part.words], stdin_text)
    return printed or UNKNOWN_TEXT


_AWK_TEXT = r"\"((?:[^\"\\\0]|\\[^\0])*)\""  # a string literal; the group is its content
# By program: a pattern for scripts in its words, which are joined by NUL. The group that matched is the script.
_SCRIPTS_IN_ARGUMENTS = {
    **dict.fromkeys(("awk", "gawk", "mawk"), rf"system\s*\(\s*{_AWK_TEXT}|\|&?\s*{_AWK_TEXT}|{_AWK_TEXT}\s*\|"),
    **dict.fromkeys(("mapfile", "readarray", "complete", "compgen"), r"\0-C\0?([^\0]*)"),
    "alias": r"=([^\0]*)",
    "git": r"\0(?:-c\0[^\0=]*(?i:alias\.|pager|editor|command|cmd|external|fsmonitor|askpass|program)[^\0=]*=!?"
    r"|rebase\0(?:.*\0)?(?:-x\0?|--exec[=\0]))([^\0]*)"
    r"|\0(?:submodule\0(?:--?\w+\0)*foreach\0(?:--?\w+\0)*|bisect\0run\0)(.*)",
    "tar": r"(?:\bexec=|\0--to-command[=\0]|\0--use-compress-program[=\0]|\0-\w*I\0?)([^\0]*)",
}
# Commands, joined by NUL, that may give a program another name, or have a subscript, in which bash runs quoted text.
_RUNS_UNSEEN = re.compile(
    r"alias\0[^\0]*=|hash\0-\w*p|enable\0-\w*f|(?:declare|typeset|local)\0(?:.*\0)?-\w*n|shift(?:\0|$)|.*\0--config-env"
    r"|(?:let|test|\[|printf|unset|read|declare|typeset|local|export|readonly)\0.*\w\[[^\[\]\0]*(?:\$\(|`)",
    re.DOTALL,
)


def scripts_of(call: ProgramCall, redirects: Sequence[Redirect], stdin_text: str, state: State) -> Iterator[str]:
    """Yield the scripts that a command may run besides the text of `sh -c`; `UNKNOWN_TEXT` for a script not shown."""
    if call.hides_program or any(not file.is_known for file in call.script_files):
        yield UNKNOWN_TEXT
    files = {file.text for file in call.script_files}
    if stdin_text and (call.reads_script or files & {"-", "/dev/stdin"}):
        yield stdin_text
    if any(file.startswith(("/dev/", "/proc/")) for file in files - {"/dev/stdin"}):  # `sh /dev/fd/3 3<<<"$text"`
        yield from filter(None, (_text_of_input(each, state) for each in redirects))
        yield stdin_text or UNKNOWN_TEXT
    joined = "\0".join(field.text for field in call.fields)
    pattern = _SCRIPTS_IN_ARGUMENTS.get(call.name)
    for found in re.finditer(pattern, joined) if pattern else ():
        text = next(filter(None, found.groups()), "")
        yield text.replace('\\"', '"').replace("\0", " ")
        if call.name == "git" and "alias." in found[0] and "=!" not in found[0]:
            yield f"git {text}"  # an alias without `!` names a subcommand of git
    if _RUNS_UNSEEN.match(joined):
        yield UNKNOWN_TEXT


class RedirectEffects(Struct, kw_only=True):
    problem: str = ""  # why they do more than read in the workspace
    catastrophe: str = ""  # why they must never be made
    effects: Effects = Effects()
    connects: bool = False  # True if a redirection opens a connection


def judge_redirects(redirects: Iterable[Redirect], state: State, check: ReadCheck) -> RedirectEffects:
    """Judge redirections. Writing is harmless only to files that keep nothing, such as /dev/null."""
    found = RedirectEffects()
    for redirect in redirects:
        operator, target = redirect.operator, state.expand(redirect.target)
        # `2>&1` copies a descriptor, and `2>&-` closes it; `>&x` writes a file.
        opens_no_file = operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.text)
        if opens_no_file or operator in ("<<", "<<-", "<<<"):
            continue
        if why := _target_problem(operator, target, check):
            found.problem = found.problem or why
            found.effects = found.effects | effects_of_redirect(operator, target, state)
        if operator != "<":  # `<>` may write, too
            found.catastrophe = found.catastrophe or write_catastrophe(target)
        found.connects = found.connects or target.text.startswith(("/dev/tcp/", "/dev/udp/"))
    return found


def _target_problem(operator: str, target: Field, check: ReadCheck) -> str:
    """Return the reason why a redirection does more than read in the workspace, or an empty string."""
    if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
        return "it opens a connection"
    if target.is_glob or target.may_vanish:
        return "agentcli can't predict where a redirection leads"
    if operator == "<":
        return check.problem([target], shows="content")
    is_sink = target.text in ("/dev/null", "/dev/stdout", "/dev/stderr")
    return "" if is_sink else f"it writes {target.text if target.is_known else 'a file'}"


# Assignments to environment variables that only change how something is shown, with the values they may have.
_DISPLAY_VARIABLE = re.compile(
    r"(LC_[A-Z]+|LANG|LANGUAGE|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|TERM|CI|RUST_BACKTRACE"
    r"|GIT_OPTIONAL_LOCKS|GIT_TERMINAL_PROMPT|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE)=[\w.@-]*"
    r"|TZ=\w*(/\w+)?|(GIT_)?PAGER=(cat)?"
)


def variable_problem(assignments: Iterable[str]) -> str:
    """Return the reason why assignments `NAME=value` may matter to a program; an empty string if they do not."""
    doubtful = [each.partition("=")[0] for each in assignments if not _DISPLAY_VARIABLE.fullmatch(each)]
    return f"{doubtful[0]} may matter to programs" if doubtful else ""


def states_after(call: ProgramCall, state: State) -> tuple[State, State]:
    """Return the shell's state after the command succeeded, and after it failed: `cd` changes the folder."""
    if call.name in ("popd", "source", ".", "eval"):  # these may change to any folder
        return state.in_unknown_folder(), state.in_unknown_folder()
    if call.name not in ("cd", "pushd"):
        return state, state
    targets = [field for field in call.fields[1:] if field.text not in ("-L", "-P", "--")]
    if not targets and call.name == "cd":
        targets = [Field(state.home)]
    if len(targets) != 1 or targets[0].text[:1] in ("-", "+"):  # `cd -` or `pushd +1`: an earlier folder
        return state.in_unknown_folder(), state
    return state.entering(targets[0]), state


def deletes_unseen(fields: Sequence[Field], state: State) -> str:
    """Return the reason why a command may delete more than its text shows, or an empty string."""
    if not fields[0].is_known:
        names_system_folder = any(is_system_path(field, state) for field in fields[1:])
        return "agentcli can't predict what it runs on a system folder" if names_system_folder else ""
    name = name_of(fields)
    is_predictable = name not in _DELETING or all(field.is_known for field in fields)
    return "" if is_predictable else f"agentcli can't predict what {name} changes"
