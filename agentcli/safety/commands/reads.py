"""Decides if one simple command, without wrappers, only reads inside the workspace."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, structs

from agentcli.safety.commands.arguments import GIT_SUBCOMMANDS, READERS, VERSION_OPTIONS, listed_names, read_arguments
from agentcli.safety.commands.paths import WILDCARD, ReadCheck, folder_above_glob
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field
from agentcli.safety.commands.records import Segment
from agentcli.safety.commands.wrappers import read_find

# Formats that show a signature, or may: git-log(1), PRETTY FORMATS; git-for-each-ref(1), FIELD NAMES
_SIGNATURE = re.compile(rf"%[-+ ]?G|signature|--(format|pretty|sort)[=\0][^\0]*{UNKNOWN_TEXT}")


def _git_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """Return why git with these arguments may do more than read, or ""."""
    call = read_git_call(fields)
    if call.problem:
        return call.problem
    for option_value in call.folders:  # each is relative to the one before
        if not option_value.is_known or option_value.is_glob or check.problem([option_value], shows="names"):
            return f"git works in {option_value.text}"
        check = ReadCheck(check.workspace, check.state.entering(option_value))
    if not call.words:  # git without a subcommand only prints its usage
        return ""
    if check.state.folders is None:
        return "it is not certain in which repository git works"
    for folder in check.state.folders:
        if setting := check.workspace.program_of_git(Path(folder)):
            return f"git may run a program: {setting}"
    name, arguments = call.words[0].text, call.words[1:]
    if [field.text for field in arguments] in (["--help"], ["-h"]):
        return f"git {name} may be an alias or a program"  # which gets the option from git
    if re.search(_SIGNATURE, "\0".join(field.text for field in arguments)):
        return "git checks signatures with the program that is set for it"
    return _git_subcommand_problem(name, arguments, check)


def _git_subcommand_problem(name: str, arguments: Sequence[Field], check: ReadCheck) -> str:
    """Return why a subcommand of git may do more than read, or "". Its options are checked before its paths."""
    two_words = f"{name} {arguments[0].text}" if arguments else name
    if two_words in GIT_SUBCOMMANDS:  # `stash list` has a row of its own
        row, arguments = GIT_SUBCOMMANDS[two_words], arguments[1:]
    else:
        row = GIT_SUBCOMMANDS.get(name, "")
    if not row:
        has_subcommands = any(known.startswith(f"{name} ") for known in GIT_SUBCOMMANDS)
        return f"git {two_words if has_subcommands else name} is not known to only read"
    row, _, listing_options = row.partition(" | ")  # with one of these it only lists; see `[git]` in only_reading.ini
    read = read_arguments(arguments, row)
    if listing_options:  # such as `git branch`, which lists branches without operands, but creates one with an operand
        lists_by_default = name != "clean" and not read.operands  # `git clean` alone deletes
        only_lists = lists_by_default or not {*listing_options.split()}.isdisjoint(read.option_names)
        return read.problem or ("" if only_lists else f"git {name} changes something")
    paths = [each for field in read.operands for each in _paths_in_revision(field)]
    if problem := read.problem or check.problem([*paths, *read.files], shows="content"):
        return problem
    # Git itself expands quoted globs in its operands, which may match secrets. A pattern of `git grep` is no such glob.
    has_pattern = name == "grep" and {"-e", "-f"}.isdisjoint(read.option_names)
    operands = _without_pattern(read.operands) if has_pattern else read.operands
    quoted = [path for field in operands if not field.is_glob for path in _paths_in_revision(field)]
    return check.filter_problem([path for path in quoted if WILDCARD.search(path.text) or "\\" in path.text])


class GitCall(Struct):
    folders: list[Field] = []  # the values of `-C`
    words: list[Field] = []  # the subcommand with its arguments
    problem: str = ""  # why the call cannot be read


def read_git_call(fields: Sequence[Field]) -> GitCall:
    """Read the words after `git`: the options before the subcommand, in the way git.c does, and the subcommand."""
    call = GitCall()
    words = iter(fields)
    for field in words:
        text = field.text
        if not field.is_known or field.may_vanish:
            call.problem = "agentcli can't predict what git does"
            break
        if not text.startswith("-"):
            call.words = [field, *words]
            break
        if text == "-C" and (folder := next(words, None)) is not None:
            call.folders.append(folder)
        elif text.startswith("-C") and len(text) > 2:
            call.folders.append(Field(text[2:], field.is_glob))
        elif text not in listed_names("git", "plain_options"):
            call.problem = f"the option {text} of git can run programs or lead elsewhere"
            break
    return call


def _paths_in_revision(field: Field) -> list[Field]:
    """Return the parts of a revision or pathspec that may be paths: all of it, and `PATH` in `REVISION:PATH`."""
    text = re.sub(r"^:(\([\w,:=/.-]*\)|[!^/]+)", "", field.text)  # `:(top)x`, `:!x`
    texts = (text, text.partition(":")[2]) if ":" in text else (text,)
    return [structs.replace(field, text=each) for each in texts]


def may_show(segment: Segment, secrets: Sequence[Path]) -> bool:
    """Return True if a command that only reads may show one of the secret files, which the sandbox here cannot hide.

    It cannot if it only shows file names, facts about files, or commits; if it only filters its input; or if all its
    paths are known and none of them leads to a secret file.
    """
    program, *arguments = segment.words or ("",)
    git_call = read_git_call([Field(word) for word in arguments] if program == "git" else [])
    git_words = [field.text for field in git_call.words]
    if program in listed_names("shows", "names_only") or _git_shows_names_only(git_words):
        return False
    if not segment.effects.reads:  # it names no path: `sort` reads its input, but `rg` the whole folder
        # An option's value may be mistaken for an option here, which only leads to an unnecessary question.
        greps_folders = program.endswith("grep") and any(re.match(r"-[^-]*[rRd]|--[rd]", word) for word in arguments)
        return program not in listed_names("shows", "its_input") or greps_folders
    if program == "git" and git_words[:1] not in (["blame"], ["annotate"]):  # these two show one file
        paths = git_words[git_words.index("--") + 1 :] if "--" in git_words else []
        if not paths or any(path.startswith(":") for path in paths):
            return True  # its operands may be revisions, or patterns that match any file
    roots = [Path(folder_above_glob(path)) for path in segment.effects.reads]
    return any(secret.is_relative_to(root) for secret in secrets for root in roots)


_GIT_SUMMARIES = re.compile(r"--(stat|shortstat|numstat|dirstat|name-only|name-status)(=|$)")
_GIT_PATCHES = re.compile(
    r"-[pucmWUL]|--(patch|unified|cc|word-diff|color-words|binary|function-context|diff-merges|remerge-diff|submodule=)"
)


def _git_shows_names_only(called: Sequence[str]) -> bool:
    """Return True if a subcommand of git, with its arguments, shows no contents of files."""
    match called:
        case ["status", *arguments]:
            return not any(re.match(r"-[^-]*v|--v", word) for word in arguments)
        case ["diff" | "show", *arguments] if not any(_GIT_SUMMARIES.match(word) for word in arguments):
            return False
        case ["log" | "diff" | "show", *arguments]:
            return not any(_GIT_PATCHES.match(word) for word in arguments)
    return bool(called) and called[0] in listed_names("shows", "git_names_only")


def problem_of(fields: Sequence[Field], check: ReadCheck) -> str:
    """Return why a command may do more than read in the workspace, or an empty string. `fields` is not empty."""
    program, arguments = fields[0], fields[1:]
    if not program.is_known or program.is_glob or program.may_vanish:
        return "agentcli can't predict which program runs"
    name = re.sub(r"\A/(usr/)?s?bin/", "", program.text)  # in other folders, any program may have a known name
    if len(arguments) == 1 and arguments[0].text in VERSION_OPTIONS.get(name, ()):
        return ""
    if special := _SPECIAL.get(name):
        return special(arguments, check)
    is_declaration = name in ("export", "declare", "typeset", "readonly")
    if name == "printenv" or (is_declaration and all(field.text.startswith("-") for field in arguments)):
        return "it shows the environment, where secrets are"
    if not (row := READERS.get(name)):
        return f"{name} is not known to only read"
    read = read_arguments(arguments, row)
    operands = read.operands
    if read.problem:
        return read.problem
    if name == "date" and any(not field.text.startswith("+") for field in operands):
        return "date can set the clock"
    if name == "uniq" and (len(operands) > 1 or any(field.is_glob or field.may_vanish for field in operands)):
        return "uniq writes its second operand"
    if read.shows == "none" and operands:  # such as `hostname NAME`
        return f"{operands[0].text} may change a setting"
    if read.shows == "search" and {"-e", "-f", "--regexp", "--file", "--files"}.isdisjoint(read.option_names):
        operands = _without_pattern(operands)
    return (
        check.problem(operands, shows=read.shows)
        or check.problem(read.files, shows="content")
        or check.filter_problem(read.filters)
    )


def _without_pattern(operands: list[Field]) -> list[Field]:
    """Return the files among the operands of a search: all operands if the pattern may become several words."""
    return operands if any(field.is_glob or field.may_vanish for field in operands[:1]) else operands[1:]


def _printf_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    form = arguments[0] if arguments else Field("")
    sets_variable = re.search(r"\A-|%[^%a-zA-Z]*[hjlLqtz]*n", form.text)  # `-v name`, or `%n` in the format
    if sets_variable or not form.is_known or form.may_vanish:
        return "printf can set a variable"
    return check.problem(arguments, shows="text")


# Parts of a pattern for sed scripts that only print, such as `10,20p`, `/a/,/b/d`, `s/a/b/g`, or several of these.
_SED_TEXT = r"(?:[^\\\n\[\]{0}]|\\[^\n]|\[\^?[^\\\n\[\]{0}]+\])*"
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_TEXT.format('/')}/I?)"
_SED_REPLACE = "|".join(rf"s\{mark}{text}\{mark}{text}\{mark}" for mark in "/|#,:" for text in [_SED_TEXT.format(mark)])
_SED_COMMAND = rf"(?:{_SED_ADDRESS}(?:,\+?{_SED_ADDRESS})?)?!?(?:[pdqDNPnhHgGx=]|(?:{_SED_REPLACE})[gpiI0-9]*)"
# By program: a pattern of the scripts that may do more than compute and print. Awk and jq have names that run programs,
# load code, or read other files or the environment; awk also writes through a pipe, or a `>` after `print`.
_MAY_DO_MORE = {
    "awk": r"\b(system|getline|ENVIRON|PROCINFO|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|extension|include|load|namespace)\b"
    r"|@|(?<!\|)\|(?!\|)|(?s:print.*>)",
    "jq": r"(?<![.\w])(env|ENV|__prog_args|input_filename|import|include|modulemeta|get_search_list)\b",
    "sed": rf"\A(?!(?:{_SED_COMMAND})?(?:[ ;\n]+{_SED_COMMAND})*[ ;\n]*\Z)",
}


def _script_problem(name: str, arguments: Sequence[Field], check: ReadCheck) -> str:
    """Judge awk, jq or sed: the first operand is a script, the others are files that it reads."""
    read = read_arguments(arguments, READERS[name])
    scripts, files = read.operands[:1], read.operands[1:]
    is_known = all(field.is_known and not field.is_glob and not field.may_vanish for field in scripts)
    if not is_known or any(field.text == "--" for field in arguments):
        return f"agentcli can't predict what {name} does"
    if read.problem:
        return read.problem
    if any(re.search(_MAY_DO_MORE[name], field.text) for field in scripts):
        more = ", such as show the environment" if name == "jq" else ""
        return f"the script of {name} may do more than print{more}"
    return check.problem(files, shows="content")


_TESTS_OF_FILES = frozenset("-b -c -d -e -f -g -h -k -p -r -s -u -w -x -G -L -N -O -S".split())


def _condition_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """Return why the words after `test`, or in `[ … ]`, may do more than look at texts and files, or ""."""
    if any(field.may_vanish or field.is_glob for field in fields):
        return "an unquoted expansion can turn into another test"
    # Tests of variables, such as `-v` and `-R`, may do more than look, because a subscript can run a command.
    harmless = {*_TESTS_OF_FILES, *"-n -z -t -a -o -eq -ne -lt -le -gt -ge".split()}
    for field in fields:
        if field.text.startswith("-") and field.text not in harmless:
            return f"the test {field.text} is not known to only look"
    tested_files = [field for test, field in pairwise(fields) if test.text in _TESTS_OF_FILES]
    return check.problem(tested_files, shows="facts")  # about the paths, nothing of the contents


def _ps_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    text = " ".join(field.text for field in arguments)
    # The BSD option `e`, and `-E` on macOS, show the environment of processes. Allowed are one group of BSD options
    # (`aux`), then options with a dash (`-eo pid,args`).
    harmless = r"(?!.*environ)([aufxwlj]+( |$))?(-[aAefFlHw]*([opC] [\w,%=:]+)?( |$)|--sort=[\w%,-]+( |$))*"
    return "" if re.fullmatch(harmless, text) else "ps may show the environment of processes"


def _cd_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    targets = [field for field in arguments if field.text not in ("-L", "-P", "--")]
    if len(targets) > 1 or any(field.text.startswith("-") for field in targets):
        return "agentcli can't predict where cd leads"
    return check.problem(targets or [Field(check.state.home)], shows="names")


def _set_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    harmless = r"[-+][efuxo]+|pipefail|errexit|nounset|noglob"
    is_harmless = arguments and all(re.fullmatch(harmless, field.text) for field in arguments)
    return "" if is_harmless else "set shows all variables, or sets an option that is not known"


def _command_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    # Only `command -v name` gets here, which runs nothing; other forms of `command` are wrappers.
    is_plain = all(re.fullmatch(r"-[vVp]|[\w.+/][\w.+/-]*", field.text) for field in arguments)
    return "" if is_plain else "not all arguments of command are names"


def _find_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    call = read_find(arguments)
    return call.problem or check.problem(call.starts or [Field(".")], shows="names")


# By program: why a call of it, without the program's name, may do more than read.
_SPECIAL: dict[str, Callable[[Sequence[Field], ReadCheck], str]] = {
    **dict.fromkeys(("awk", "gawk", "mawk"), partial(_script_problem, "awk")),
    "jq": partial(_script_problem, "jq"), "sed": partial(_script_problem, "sed"), "git": _git_problem,
    "test": _condition_problem, "[": lambda arguments, check: _condition_problem(arguments[:-1], check),
    "cd": _cd_problem, "command": _command_problem, "find": _find_problem, "printf": _printf_problem,
    "ps": _ps_problem, "set": _set_problem,
}  # fmt: skip
