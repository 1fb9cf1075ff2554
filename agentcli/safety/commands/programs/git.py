"""Judges calls of git that only read the repository (git-scm.com/docs, git 2.47)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.safety.commands.programs.options import Arguments, options, read_arguments, without_pattern
from agentcli.safety.commands.programs.read_check import WILD, ReadCheck
from agentcli.safety.commands.reader.syntax import Field

_DIFF = (
    "-abDpPqRsuvwWz -B? -C? -M? -U? -S: -G: -l: -X? --abbrev? --binary --break-rewrites? --cached --cc --check "
    "--color-moved? "
    "--color-words? --color? --combined-all-paths --compact-summary --diff-algorithm: --diff-filter: --dirstat? "
    "--exit-code --find-copies-harder --find-copies? --find-renames? --follow --full-index --function-context "
    "--histogram --ignore-all-space --ignore-blank-lines --ignore-space-at-eol --ignore-space-change "
    "--ignore-submodules? --indent-heuristic --inter-hunk-context: --irreversible-delete --ita-invisible-in-index "
    "--merge-base --minimal --name-only --name-status --no-color --no-ext-diff --no-indent-heuristic --no-patch "
    "--no-prefix --no-renames --no-textconv --numstat --patch --patch-with-stat --patience --pickaxe-all "
    "--pickaxe-regex --quiet --raw --relative? --rename-empty --shortstat --src-prefix: --dst-prefix: --staged --stat? "
    "--submodule? --summary --text --unified? --word-diff-regex: --word-diff? --ws-error-highlight: --line-prefix: "
)
_LOG = (
    _DIFF + "-# -g -c -i -E -F -P -h -m -r -t -n: -L: --abbrev-commit --after: --all --all-match --ancestry-path? "
    "--author-date-order --author: --before: --bisect --boundary --branches? --cherry --cherry-mark --cherry-pick "
    "--children --clear-decorations --committer: --count --date-order --date: --decorate-refs-exclude: "
    "--decorate-refs: --decorate? --dense --do-walk --encoding: --exclude: --extended-regexp --first-parent "
    "--fixed-strings --format: --full-diff --full-history --glob: --graph --grep-reflog: --grep: --invert-grep "
    "--left-only --left-right --log-size --mailmap --max-count: --max-parents: --merge --merges --min-parents: "
    "--no-abbrev-commit --no-commit-id --no-decorate --no-mailmap --no-max-parents --no-merges --no-min-parents "
    "--no-notes --no-walk? "
    "--not --notes? --oneline --parents --perl-regexp --pretty? --reflog --regexp-ignore-case --relative-date "
    "--remotes? --remove-empty --reverse --right-only --root --show-linear-break? --show-pulls "
    "--simplify-by-decoration "
    "--simplify-merges --since: --single-worktree --skip: --source --sparse --tags? --topo-order --until: "
    "--use-mailmap "
    "--walk-reflogs --expand-tabs? --no-expand-tabs --diff-merges: --remerge-diff --no-graph --summary "
)
_REFS = (
    "--contains? --no-contains? --merged? --no-merged? --points-at? --sort: --format: --color? --no-color --column? "
    "--no-column --ignore-case -i --omit-empty "
)

# Subcommands that only read with these options, whichever revisions and paths of the workspace follow.
_READING = {
    "annotate": "content " + (blame := "-bceflnpstw -L: -C? -M? -S@ --abbrev: --color-by-age --color-lines --date: "
    "--first-parent --ignore-rev: --incremental --line-porcelain --minimal --porcelain --progress --no-progress --root "
    "--score-debug --show-email --show-name --show-number --show-stats --since: --reverse"),
    "blame": "content " + blame,
    "cat-file": "content -eptsZ --batch-all-objects --batch-check? --buffer --follow-symlinks --unordered",
    "check-attr": "content -az --all --cached --stdin",
    "check-ignore": "content -nqvz --no-index --non-matching --quiet --stdin --verbose",
    "cherry": "content -v --abbrev?",
    "count-objects": "content -vH --human-readable --verbose",
    "describe": "content --abbrev? --all --always --candidates: --contains --dirty? --broken? --exact-match --exclude: "
    "--first-parent --long --match: --tags --debug",
    "diff": "content " + _DIFF,
    "diff-files": "content " + _DIFF,
    "diff-index": "content " + _DIFF + "-m",
    "diff-tree": "content " + _LOG,
    "for-each-ref": "content " + _REFS + "--count: --exclude: --shell --perl --python --tcl",
    "grep": "content -acEFGHhiIlLnoPpqrsvwWz -A: -B: -C: -e: -f@ -m: -# --all-match --and --basic-regexp --break "
    "--cached --color? --column --count --exclude-standard --extended-regexp --files-with-matches "
    "--files-without-match --fixed-strings --full-name --function-context --heading --ignore-case --invert-match "
    "--line-number --max-count: --max-depth: --name-only --no-color --no-exclude-standard --no-index --no-recursive "
    "--no-textconv --not --null --only-matching --or --perl-regexp --quiet --recurse-submodules --recursive --text "
    "--threads: --untracked --word-regexp --show-function --after-context: --before-context: --context:",
    "log": "content " + _LOG,
    "ls-files": "content -cdfikmorstuvz -x: --abbrev? --cached --debug --deduplicate --deleted --directory --eol "
    "--error-unmatch --exclude-standard --exclude: --format: --full-name --ignored --killed --modified "
    "--no-empty-directory --others --recurse-submodules --resolve-undo --sparse --stage --unmerged",
    "ls-tree": "content -dlrtz --abbrev? --format: --full-name --full-tree --long --name-only --name-status "
    "--object-only",
    "merge-base": "content -a --all --fork-point --independent --is-ancestor --octopus",
    "name-rev": "content --all --always --exclude: --name-only --no-undefined --refs: --tags",
    "range-diff": "content " + _DIFF + "--creation-factor: --no-dual-color --left-only --right-only",
    "rev-list": "content " + _LOG + "--bisect-vars --disk-usage? --header --objects --objects-edge --timestamp "
    "--no-commit-header --filter: --stdin --unpacked --quiet",
    "rev-parse": "content -q --abbrev-ref? --absolute-git-dir --all --branches? --default: --disambiguate: --flags "
    "--git-common-dir --git-dir --git-path: --glob: --is-bare-repository --is-inside-git-dir --is-inside-work-tree "
    "--is-shallow-repository --local-env-vars --no-flags --no-revs --not --path-format: --prefix: --quiet --remotes? "
    "--revs-only --short? --show-cdup --show-object-format? --show-prefix --show-ref-format "
    "--show-superproject-working-tree --show-toplevel --since: --sq --symbolic --symbolic-full-name --tags? --until: "
    "--verify",
    "shortlog": "content -censE -w? --after: --all --author: --before: --branches? --committer --email --format: "
    "--group: --grep: --merges --no-merges --numbered --remotes? --since: --summary --tags? --until:",
    "show": "content " + _LOG,
    "show-branch": "content -agr --all --color? --current --list --merge-base --more: --independent --no-color "
    "--no-name "
    "--reflog? --remotes --sha1-name --sparse --topo-order --topics",
    "show-ref": "content -dhqs --abbrev? --branches --dereference --exists --hash? --head --heads --quiet --tags "
    "--verify",
    "status": "content -bsvz -u? --ahead-behind --branch --column? --find-renames? --ignore-submodules? --ignored? "
    "--long --no-ahead-behind --no-column --no-renames --null --porcelain? --renames --short --show-stash "
    "--untracked-files? --verbose",
    "verify-pack": "content -sv --stat-only --verbose",
    "version": "none --build-options",
    "whatchanged": "content " + _LOG,
}  # fmt: skip

# Subcommands of which only some forms read: the required option or first operand, and their options.
_LISTING = {
    "branch": "content -alrvi " + _REFS + "--all --abbrev? --list --no-abbrev --remotes --show-current --verbose",
    "tag": "content -l -n? " + _REFS + "--list",
}
_LISTS = {
    "branch": frozenset("-a -r --all --list --remotes --show-current --contains --no-contains --merged --no-merged "
                        "--points-at".split()),
    "tag": frozenset("-l --list --contains --no-contains --merged --no-merged --points-at -n".split()),
}  # fmt: skip
_SECOND_WORDS = {
    "bisect": ("log",),
    "notes": ("list", "show"),
    "reflog": ("show", "exists", "list"),
    "remote": ("get-url", "-v", "--verbose"),
    "stash": ("list", "show"),
    "submodule": ("status", "summary"),
    "worktree": ("list",),
}
_SECOND_OPTIONS = {
    "reflog": "content " + _LOG,
    "remote": "text -v --all --push --verbose",
    "stash": "content " + _LOG + "--include-untracked --only-untracked",
    "worktree": "text -vz --porcelain --verbose",
}
# Settings that hold no secret.
_SHOWABLE_SETTING = re.compile(
    r"(user\.(name|email)|(core|color|init|branch|diff|merge|pull|push|rebase|fetch|log|status)\.[\w./-]+"
    r"|remote\.[\w./-]+\.(url|fetch))"
)


def git_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why `git` with these arguments may do more than read, or an empty string."""
    call = read_call(fields)
    if call.problem:
        return call.problem
    for folder in call.folders:
        moved = check.within(folder)
        if moved is None:
            return f"git works in {folder.text}"
        check = moved
    if not call.words:
        return ""
    if why := _program_problem(check):
        return why
    name, rest = call.words[0].text, call.words[1:]
    if [field.text for field in rest] in (["--help"], ["-h"]):
        return "" if name in _BUILT_IN else f"git {name} may be an alias or a program"
    if any(field.text == "--help" for field in rest):
        return f"git {name} is given more than --help"
    if any(_may_check_signatures(field, before) for before, field in itertools.pairwise(call.words)):
        return "git checks signatures with the program that is set for it"
    if special := _SPECIAL.get(name):
        return special(rest, check)
    if row := _READING.get(name):
        return _problem_of(read := read_arguments(rest, options(row)), check) or _pathspec_problem(name, read, check)
    if name in _LISTING:
        return _listing_problem(name, rest, check)
    if name in _SECOND_WORDS:
        return _second_problem(name, rest, check)
    return f"git {name} is not known to only read"


def _program_problem(check: ReadCheck) -> str:
    """The reason why git may run a program that the repository has chosen."""
    if check.state.places is None:
        return "it is not certain in which repository git works"
    settings = (check.places.program_of_git(Path(place)) for place in check.state.places)
    return next((f"git may run a program: {setting}" for setting in settings if setting), "")


# Subcommands that no alias can hide (git-config(1), alias.*).
_BUILT_IN = frozenset((
    *_READING, *_LISTING, *_SECOND_WORDS, *(
        "add am apply archive bundle checkout cherry-pick clean clone commit commit-graph commit-tree config fetch "
        "format-patch fsck gc hash-object help init ls-remote merge merge-file merge-tree mktag mktree mv pack-refs "
        "prune pull push read-tree rebase repack replace rerere reset restore revert rm sparse-checkout stripspace "
        "switch symbolic-ref update-index update-ref var verify-commit verify-tag write-tree"
    ).split(),
))  # fmt: skip
_SIGNATURE = re.compile(r"%[-+ ]?G|signature")  # git-log(1), PRETTY FORMATS; git-for-each-ref(1), FIELD NAMES
_FORMAT = re.compile(r"--(format|pretty|sort)(=|$)")


def _may_check_signatures(field: Field, before: Field) -> bool:
    """True if an argument, which follows `before`, may be a format that shows whether a signature is good."""
    is_format = _FORMAT.match(field.text) is not None or _FORMAT.fullmatch(before.text) is not None
    return is_format and (not field.is_known or _SIGNATURE.search(field.text) is not None)


class GitCall(Struct):
    """A call of git: the folders of `-C`, the subcommand with its arguments, or why it cannot be read."""

    folders: list[Field]
    words: list[Field]
    problem: str = ""


_PLAIN_GLOBALS = frozenset(
    "-P --no-pager --no-optional-locks --no-replace-objects --literal-pathspecs --glob-pathspecs "
    "--noglob-pathspecs --icase-pathspecs --no-lazy-fetch --no-advice".split()
)
_HELPS = ("--help", "-h")  # like the subcommand `help` with the rest
_ENDS = ("--version", "-v", "--html-path", "--man-path", "--info-path", "--exec-path")
_HARMLESS_SETTING = re.compile(
    r"(color\.[\w.]+|core\.quote[pP]ath|core\.abbrev|advice\.\w+|column\.\w+|(?!(?i:log\.showsignature))log\.\w+|diff\.renames|diff\.context)=\w*"
    r"|pager\.\w+=(false)?|core\.fsmonitor=(false)?|core\.hooksPath=/dev/null"
)


def read_call(fields: Sequence[Field]) -> GitCall:
    """Take off the options before the subcommand, as git.c does."""
    call = GitCall([], [])
    rest = list(reversed(fields))
    while rest:
        field = rest.pop()
        text = field.text
        if not field.is_known or field.may_vanish:
            call.problem = "what git is to do cannot be told"
            return call
        if not text.startswith("-"):
            call.words = [field, *reversed(rest)]
            return call
        if text == "-C" and rest:
            call.folders.append(rest.pop())
        elif text.startswith("-C") and len(text) > 2:
            call.folders.append(Field(text[2:], field.is_glob))
        elif text == "-c" and rest and _HARMLESS_SETTING.fullmatch(rest[-1].text):
            rest.pop()
        elif text in _HELPS:
            call.words = [Field("help"), *reversed(rest)]
            return call
        elif text in _ENDS:
            return call
        elif text == "--":  # git rejects unknown options
            call.problem = "" if all(each.text in (*_HELPS, *_ENDS) for each in rest) else "git is given `--` and more"
            return call
        elif text not in _PLAIN_GLOBALS:
            call.problem = f"the option {text} of git can run programs or lead elsewhere"
            return call
    return call


def _problem_of(read: Arguments, check: ReadCheck, *, operands: bool = True) -> str:
    if read.problem:
        return read.problem
    paths = [each for field in read.operands for each in _paths_in(field)] if operands else []
    return check.problem([*paths, *read.files], "content")


def _pathspec_problem(name: str, read: Arguments, check: ReadCheck) -> str:
    """The reason why globs that git itself matches may find secrets. The pattern of `git grep` is not one."""
    operands = (
        without_pattern(read.operands) if name == "grep" and not {"-e", "-f"} & set(read.given) else read.operands
    )
    paths = (path for field in operands if not field.is_glob for path in _paths_in(field))
    return check.filter_problem([path for path in paths if WILD.search(path.text) or "\\" in path.text])


def _paths_in(field: Field) -> list[Field]:
    """The parts of a revision or pathspec that may be paths: all of it, and the text behind a colon."""
    text = re.sub(r"^:(\([\w,:=/.-]*\)|[!^/]+)", "", field.text)
    found = [Field(text, field.is_glob, field.may_vanish)]
    if ":" in text:
        found.append(Field(text.partition(":")[2], field.is_glob, field.may_vanish))
    return found


def _listing_problem(name: str, rest: Sequence[Field], check: ReadCheck) -> str:
    read = read_arguments(rest, options(_LISTING[name]))
    if read.problem:
        return read.problem
    if read.operands and not _LISTS[name] & set(read.given):
        return f"git {name} makes or moves a reference"
    return check.problem([field for field in read.operands if not field.is_glob], "text")


def _second_problem(name: str, rest: Sequence[Field], check: ReadCheck) -> str:
    bare_reads = name in ("remote", "reflog", "submodule", "notes")
    if not rest:
        return "" if bare_reads else f"git {name} changes something"
    is_option = rest[0].text.startswith("-")
    if rest[0].text not in _SECOND_WORDS[name] and not (is_option and name == "reflog"):
        return f"git {name} {rest[0].text} is not known to only read"
    arguments = rest if is_option else rest[1:]
    if name == "remote" and is_option and len(rest) > 1:
        return "git remote is given more"
    row = _SECOND_OPTIONS.get(name, "text")
    return _problem_of(read_arguments(arguments, options(row)), check, operands=row.startswith("content"))


def _clean_problem(rest: Sequence[Field], check: ReadCheck) -> str:
    read = read_arguments(rest, options("content -dnqxX -e: --dry-run --exclude: --quiet"))
    if not {"-n", "--dry-run"} & set(read.given):
        return "git clean deletes files"
    return _problem_of(read, check)


def _config_problem(rest: Sequence[Field], check: ReadCheck) -> str:
    words = [field.text for field in rest if field.is_known]
    words = [word for word in words if word not in ("--local", "--global", "--system", "--worktree", "--show-origin")]
    is_reading = len(words) == 1 or (len(words) == 2 and words[0] in ("--get", "--get-all", "get"))
    is_literal = all(field.is_known and not field.is_glob for field in rest)
    if is_reading and is_literal and _SHOWABLE_SETTING.fullmatch(words[-1]):
        return ""
    return "git config changes settings or shows secrets"


def _symbolic_ref_problem(rest: Sequence[Field], check: ReadCheck) -> str:
    read = read_arguments(rest, options("text most=1 -q --quiet --short --no-recurse --recurse"))
    return read.problem


def _apply_problem(rest: Sequence[Field], check: ReadCheck) -> str:
    read = read_arguments(rest, options("content -v --check --numstat --stat --summary --verbose --cached --index -R"))
    if not {"--check", "--numstat", "--stat", "--summary"} & set(read.given):
        return "git apply changes files"
    return _problem_of(read, check)


_SPECIAL: dict[str, Callable[[Sequence[Field], ReadCheck], str]] = {
    "apply": _apply_problem,
    "clean": _clean_problem,
    "config": _config_problem,
    "help": lambda rest, check: read_arguments(rest, options("text -ag --all --guides")).problem,
    "symbolic-ref": _symbolic_ref_problem,
}
