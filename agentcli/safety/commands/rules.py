"""Matches permission rules against simple commands, and offers rules for a command."""

from __future__ import annotations

import fnmatch
import re

from agentcli.safety.commands.records import CommandAnalysis, Segment


def covers(pattern: str, segment: Segment) -> bool:
    """True if a granting rule such as `git log *` covers this simple command. Strict.

    Harmless wrappers and quotes make no difference. A command that redirects into a file, sets a variable that matters
    to programs or changes the user is never covered. A final ` *` may match nothing.
    """
    return segment.verdict != "block" and any(_matches(form, pattern) for form in segment.allow_forms)


def touches(pattern: str, segment: Segment) -> bool:
    """True if a refusing rule such as `rm *` matches this simple command. Generous.

    It matches under any wrapper, quoting, folder or variable, and where `find -exec` or `xargs` would run the command.
    """
    return any(_matches(form, pattern) for form in segment.deny_forms)


def rules_by_segment(analysis: CommandAnalysis) -> tuple[tuple[str, ...], ...]:
    """For each command that does not only read the globs that cover it, narrowest first; empty if one has none.

    Also empty if the command is not read: no rule would cover it.
    """
    if analysis.problem:
        return ()
    rules = tuple(_rules_for(segment) for segment in analysis.segments if segment.verdict != "allow")
    return rules if all(rules) else ()


def _matches(form: str, pattern: str) -> bool:
    pattern = " ".join(pattern.split())
    return fnmatch.fnmatchcase(form, pattern) or (pattern.endswith(" *") and form == pattern[:-2])


def _rules_for(segment: Segment) -> tuple[str, ...]:
    """The exact command, then the same program and subcommand with anything behind them."""
    if segment.verdict == "block" or not segment.allow_forms or segment.words is None:
        return ()
    if _runs_anything(segment.words):
        return ()
    rules = [_escaped(segment.allow_forms[-1])]
    rules += [f"{_escaped(' '.join(start))} *" for start in _beginnings(segment.words)]
    return tuple(dict.fromkeys(rule for rule in rules if covers(rule, segment)))


# Programs that run what they are given or read, so that a rule for them would promise nothing.
_RUNNERS = frozenset(
    (
        "sh bash dash zsh ksh ash fish env xargs parallel eval exec source . npx bunx pnpx uvx ssh su watch script "
        "strace gdb osascript expect"
    ).split()
)
_INTERPRETERS = frozenset("python python2 python3 pypy node nodejs deno bun perl ruby php lua Rscript julia".split())


def _runs_anything(words: tuple[str, ...]) -> bool:
    """True for a shell, and for an interpreter that runs a text instead of a file."""
    name = words[0].rpartition("/")[2]
    is_given_text = len(words) == 1 or words[1].startswith("-")
    pair = ":".join(words[:2])
    return name in _RUNNERS or (name in _INTERPRETERS and is_given_text) or pair in _RUNS_GIVEN


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


# Programs whose second word says what they do, so that a person can judge `git push *`.
_WITH_SUBCOMMANDS = frozenset(
    (
        "apt apt-get brew bun bundle cargo composer conda deno docker dotnet gh git glab go gradle helm hg just "
        "kubectl meson mix npm nx pip pip3 pipx pnpm podman poetry pdm ruff rustup svn systemctl task terraform tox "
        "turbo uv yarn"
    ).split()
)
# Second words that only name a group; the third word says what is done.
_GROUPS = frozenset(
    (
        "npm:run pnpm:run yarn:run bun:run npm:run-script docker:compose docker:container docker:image docker:volume "
        "docker:network docker:system docker:buildx podman:compose podman:container podman:image gh:pr gh:issue "
        "gh:repo gh:release gh:workflow gh:gist gh:label gh:project gh:cache gh:variable glab:mr glab:issue git:stash "
        "git:remote git:worktree git:notes git:reflog git:sparse-checkout go:mod go:work uv:pip uv:python uv:cache "
        "conda:env poetry:self poetry:cache npm:cache npm:pkg pnpm:store cargo:nextest kubectl:rollout kubectl:get "
        "kubectl:describe terraform:state terraform:workspace helm:repo brew:services rustup:toolchain "
        "rustup:component rustup:target dotnet:tool"
    ).split()
)
# Second words that run anything, or change what later commands run.
_RUN_ANYTHING = frozenset(
    (
        "alias api apply auth bisect config debug difftool dlx eval exec explore ext extension filter-branch "
        "mergetool plugin plugins rebase rsh script secret shell ssh submodule x"
    ).split()
)
_RUN_ANYTHING_HERE = frozenset(
    (
        "deno:run docker:run docker:cp go:run go:generate go:tool pdm:run pipx:run podman:run poetry:run uv:run "
        "uv:tool kubectl:run kubectl:cp conda:run cargo:run rustup:run npm:set npm:create npm:init yarn:create "
        "pnpm:create bun:create pnpm:node yarn:node git:daemon git:instaweb git:send-email"
    ).split()
)
_RUNS_GIVEN = frozenset(
    "uv:run uv:tool pipx:run poetry:run pdm:run conda:run npm:exec npm:x pnpm:dlx pnpm:exec yarn:dlx bun:x".split()
)
# Programs that do one thing with the project, whatever their arguments.
_ONE_THING = frozenset("pytest mypy pyright black isort flake8 pylint eslint prettier tsc jest vitest rspec".split())


def _beginnings(words: tuple[str, ...]) -> list[list[str]]:
    """The leading words that can stand for the whole command."""
    program = words[0]
    if program in _ONE_THING:
        return [[program]]
    if program not in _WITH_SUBCOMMANDS or len(words) < 2 or not _is_name(words[1]):
        return []
    pair = f"{program}:{words[1]}"
    if words[1] in _RUN_ANYTHING or pair in _RUN_ANYTHING_HERE:
        return []
    if pair in _GROUPS:
        is_named = len(words) > 2 and re.fullmatch(r"[A-Za-z][\w:.-]*", words[2]) and words[2] not in _RUN_ANYTHING
        return [list(words[:3])] if is_named else []
    starts = [list(words[:3])] if len(words) > 3 and _is_name(words[2]) else []
    return [*starts, list(words[:2])]


def _is_name(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z][A-Za-z-]*", word) is not None
