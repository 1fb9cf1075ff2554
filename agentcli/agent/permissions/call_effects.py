"""Describes the effects of a call in the lines that its question shows, the most serious first."""

import re
from collections.abc import Iterable
from pathlib import PurePath

from msgspec import Struct

from agentcli.agent.permissions.decide import CHANGES_A_FILE
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.conversation.history import listed_names
from agentcli.patterns import lazy_pattern
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Segment, known
from agentcli.safety.paths.judge import WHY

MAX_SHOWN = 6  # hosts, paths or programs in one line
OUTSIDE = "runs OUTSIDE the sandbox: it can read, change and send anything you can"
# Reasons to ask that add nothing to the lines about hosts, or to those about files.
_ABOUT_HOSTS = "acts beyond the workspace$|reaches other machines$|fetches what it runs$"
_ABOUT_FILES = "is not known to only read$|^it writes |may hold secrets|is outside the workspace"
_RUNS_AS_ANOTHER = lazy_pattern(r"(sudo|doas|pkexec|su)(?= |\Z)")
# A push with `-f`, `--force`, `--force-with-lease`, `--mirror`, or a `+` before the refspec.
_FORCED_PUSH = lazy_pattern(r"git push\b.* (-[a-zA-Z46]*f[a-zA-Z46]*|--force\S*|--mirror|\+\S+)(?= |\Z)", re.DOTALL)
_DISCARDS_CHANGES = lazy_pattern(
    r"git (clean|restore|reset\b.* --hard|checkout\b.* (--|\.|-f|--force))(?= |\Z)", re.DOTALL
)
# Programs that run their input. If the input comes from a host, the command runs a script from there.
_INTERPRETERS = frozenset("sh bash dash zsh ksh fish python python3 perl ruby node php".split())
_DOWNLOADERS = frozenset("curl wget http https xh".split())
_READS_INPUT = lazy_pattern("(-|-[seux]+)?")  # matches the first argument, or "", of an interpreter that runs stdin
_RUNS_SUBSTITUTION = lazy_pattern(
    rf"(eval|source|\.|{'|'.join(sorted(_INTERPRETERS))})\b.*[<$]\(\s*({'|'.join(_DOWNLOADERS)})\b"
)
_PACKAGE_MANAGERS = frozenset("npm pnpm yarn bun pip pip3 uv poetry pdm pipenv cargo go gem bundle composer".split())
_INSTALLS = frozenset("add ci i install install-test it get require restore sync update up upgrade".split())


class CallEffects(Struct, frozen=True):
    """Descriptions of the effects of a call, the most serious first."""

    lines: tuple[str, ...]
    grave: tuple[str, ...] = ()  # those of the lines that a person must not overlook


def call_effects(facts: CallFacts, decision: PolicyDecision) -> CallEffects:
    """Return the effects of a call, followed by the reason to ask if that adds something."""
    if facts.command is not None:
        return _command_call_effects(facts, facts.command, decision)
    if facts.tool.effect not in ("read", "edit"):
        return CallEffects((decision.reason,))
    is_edit = facts.tool.effect == "edit"
    line_of = WHY | {"outside": "writes outside the project" if is_edit else "outside the project"}
    kinds = dict.fromkeys(path.kind for path in facts.files if path.kind != "plain")
    lines = [line_of[kind] for kind in kinds]
    if decision.reason not in (CHANGES_A_FILE, *(path.why for path in facts.files)):  # the lines say these already
        lines.append(decision.reason)
    # Reading outside the project is not grave.
    return CallEffects(tuple(lines), tuple(line_of[kind] for kind in kinds if kind != "outside" or is_edit))


def _command_call_effects(facts: CallFacts, command: CommandAnalysis, decision: PolicyDecision) -> CallEffects:
    """Return the effects of a command, where it runs, and the reason to ask, unless other lines say it already."""
    effects, workspace, arguments = command_effects(facts, command), facts.workspace, facts.arguments
    folder = getattr(arguments, "cwd", None) or (workspace.shell_cwd and workspace.shown(workspace.shell_cwd))
    where = [f"runs in {folder}"] if folder and folder != "." else []
    where += ["runs in the background"] if getattr(arguments, "background", False) else []
    lines, grave = (*effects.lines, *where), effects.grave
    if getattr(arguments, "unconfined", False) or decision.runs_outside:  # then that is the reason to ask
        outside = (OUTSIDE, *facts.paths.git_warnings[:1])  # one warning is enough
        return CallEffects((*outside, *lines), (*outside, *grave))
    is_about_files = decision.reason == command.reason and re.search(_ABOUT_FILES, decision.reason)
    is_about_hosts = command.effects.hosts and re.search(_ABOUT_HOSTS, decision.reason)
    return CallEffects(lines if is_about_files or is_about_hosts else (*lines, decision.reason), grave)


def command_effects(facts: CallFacts, command: CommandAnalysis) -> CallEffects:
    """Return lines such as `deletes docs, build` or `reaches example.org`, and one about unpredictable effects.

    The person decides by these lines. The `grave` ones, which must not be overlooked, come first.
    """
    effects, shown = command.effects, facts.paths.shown
    runs_download = _runs_download(command)
    grave = [*_deletion_and_host_lines(facts, command, runs_download), *_blocked_file_lines(facts)]
    plain = list[str]()
    blocked = {str(file.real) for file in facts.blocked_files}  # they have lines of their own
    reads = [path for path in facts.paths.find_each(effects.reads, "read") if str(path.real) not in blocked]
    outside_reads = tuple(sorted({path.given for path in reads if path.kind == "outside"}))
    reads_line = _effect_line("reads outside the project:", shown(outside_reads))
    (grave if known(effects.hosts) else plain).append(reads_line)  # it may send them to a host
    written = shown(tuple(path for path in effects.writes if path not in blocked))
    if written != ["this folder"]:  # any command may write to that
        plain.append(_effect_line("writes", written))
    programs = ["something" if program == UNKNOWN else PurePath(program).name for program in effects.runs]
    # The text of an opaque command does not show what it does: it runs a program unknown to agentcli, for example.
    is_opaque = all(UNKNOWN in things for things in (effects.reads, effects.writes, effects.deletes, effects.hosts))
    if not is_opaque:
        is_grave = UNKNOWN in (*effects.deletes, *effects.hosts)
        (grave if is_grave else plain).append(_unpredictable_line(command))
    elif not runs_download:  # the line "runs a script from HOST" says it already
        # Inside the sandbox, a command can only change the workspace, which is not grave.
        lines = plain if command.verdict == "try" and facts.workspace.facts.confines else grave
        if any((*grave, *plain)):
            lines.append("can't predict what else it does")
        elif not known(effects.runs):
            lines.append("can't predict what this does")
        else:
            lines.append(f"{_effect_line('runs', programs)}: can't predict what it does")
    if not any((*grave, *plain)):  # files of the project that it reads matter only if it has no other effect
        things = (("writes", written), ("reads", shown(effects.reads)), ("runs", programs))
        candidates = (_effect_line(verb, names) for verb, names in things)
        plain = [next(filter(None, candidates), "")]
    grave = [*_privilege_and_git_lines(command), *grave]
    return CallEffects(tuple(filter(None, (*grave, *plain))), tuple(filter(None, grave)))


# The next three functions return lines, which are "" for effects that a command does not have.


def _deletion_and_host_lines(facts: CallFacts, command: CommandAnalysis, runs_download: bool) -> list[str]:
    deleted = facts.paths.shown(command.effects.deletes)
    if any(part.words and part.words[0] == "find" and "-delete" in part.words for part in command.segments):
        deleted = [*deleted, "everything find matches"]
    registries = [host for part in command.segments if _installs_packages(part) for host in known(part.effects.hosts)]
    others = [host for host in known(command.effects.hosts) if host not in registries]
    return [
        _effect_line("deletes", deleted),
        _effect_line("runs a script from" if runs_download else "reaches", others),
        _effect_line("installs packages (their scripts may run) from", registries),
    ]


def _blocked_file_lines(facts: CallFacts) -> list[str]:
    shown = facts.paths.shown
    outside = [file.real for file in facts.blocked_files if file.kind == "outside"]
    lost = [path for path in outside if facts.stays_inside and facts.paths.is_lost_in_tmp(path)]
    special = [file for file in facts.blocked_files if file.kind != "outside"]  # secret or auto-executed
    return [
        _effect_line("writes outside the project:", shown(tuple(str(path) for path in outside if path not in lost))),
        _effect_line("writes to a /tmp of its own, which is gone when it ends:", shown(tuple(map(str, lost)))),
        *(f"{file.access}s {shown((str(file.real),))[0]}, which {WHY[file.kind]}" for file in special),
    ]


def _privilege_and_git_lines(command: CommandAnalysis) -> list[str]:
    forms = [form for segment in command.segments for form in segment.deny_forms]  # texts without wrappers and quotes
    return [
        _effect_line("runs as another user, with", [found[0] for found in map(_RUNS_AS_ANOTHER.match, forms) if found]),
        "forces the push: it can overwrite commits on the remote" if any(map(_FORCED_PUSH.match, forms)) else "",
        "may discard changes that are not committed" if any(map(_DISCARDS_CHANGES.match, forms)) else "",
    ]


def _runs_download(command: CommandAnalysis) -> bool:
    """Return True if a command runs a script that it downloads: from a pipe, a substitution or a file."""
    if not known(command.effects.hosts):
        return False
    has_downloaded, downloaded_names = False, set[str]()
    for segment in command.segments:
        name, *arguments = segment.words or ("",)
        if name in _DOWNLOADERS:
            has_downloaded = True
            # Any argument may name the file: an option's value, or an address, whose last part becomes the name.
            downloaded_names.update(PurePath(word).name for word in (*arguments, *segment.effects.writes))
        runs_input = name in _INTERPRETERS and _READS_INPUT.fullmatch(arguments[0] if arguments else "")
        runs_file = any(PurePath(program).name in downloaded_names for program in segment.effects.runs)
        if has_downloaded and (runs_input or runs_file or _RUNS_SUBSTITUTION.match(segment.text)):
            return True
    return False


def _installs_packages(segment: Segment) -> bool:
    name, *arguments = segment.words or ("",)
    return name in _PACKAGE_MANAGERS and not _INSTALLS.isdisjoint(arguments)


def _unpredictable_line(command: CommandAnalysis) -> str:
    """Return the line about effects that only the shell determines at run time; "" if there are none."""
    effects = command.effects
    verbs = [verb for verb, paths in (("delete", effects.deletes), ("write", effects.writes)) if UNKNOWN in paths]
    lines = [f"may {' or '.join(verbs)} files; agentcli can't tell which"] if verbs else []
    hosts = ["connects to unknown hosts (/sandbox host NAME opens one)"] if UNKNOWN in effects.hosts else []
    return ", ".join([*lines, *hosts])


def _effect_line(verb: str, things: Iterable[str]) -> str:
    """Return a line such as "deletes a, b and 3 more"; empty if there are no things."""
    things = list(dict.fromkeys(things))
    return f"{verb} {listed_names(things, MAX_SHOWN)}" if things else ""
