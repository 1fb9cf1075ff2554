"""Permission rules over commands: which commands a glob covers, and which globs to offer for one."""

from __future__ import annotations

import fnmatch
import re

from agentcli.safety.commands.records import CommandAnalysis, Segment


def covers(pattern: str, segment: Segment) -> bool:
    """Whether a granting rule such as `git log *` speaks of this simple command: strictly.

    Harmless wrappers and quotes make no difference; a redirection into a file, a variable that matters to programs or
    another user is never covered. ` *` at the end may match nothing.
    """
    return segment.verdict != "catastrophic" and any(_matches(form, pattern) for form in segment.allow_forms)


def touches(pattern: str, segment: Segment) -> bool:
    """Whether a refusing rule such as `rm *` speaks of this simple command: generously.

    Under any wrapper, quoting, folder or variable, also where `find -exec` or `xargs` would run it.
    """
    return any(_matches(form, pattern) for form in segment.deny_forms)


def rules_by_segment(analysis: CommandAnalysis) -> tuple[tuple[str, ...], ...]:
    """For each command that is not harmless the globs that cover it, narrowest first; empty if one has none."""
    unknown = [segment for segment in analysis.segments if segment.verdict != "harmless"]
    rules = tuple(_rules_for(segment) for segment in unknown)
    return rules if all(rules) else ()


def _matches(form: str, pattern: str) -> bool:
    pattern = " ".join(pattern.split())
    return fnmatch.fnmatchcase(form, pattern) or (pattern.endswith(" *") and form == pattern[:-2])


def _rules_for(segment: Segment) -> tuple[str, ...]:
    """The very command, then the same program with the same subcommand and whatever follows."""
    if segment.verdict == "catastrophic" or not segment.allow_forms or segment.words is None:
        return ()
    if _runs_anything(segment.words):
        return ()
    rules = [_escaped(segment.allow_forms[-1])]
    rules += [f"{_escaped(' '.join(start))} *" for start in _beginnings(segment.words)]
    return tuple(dict.fromkeys(rule for rule in rules if covers(rule, segment)))


# Programs that run what they are given or what they read, so that a rule for them would promise nothing.
_RUNNERS = frozenset(
    (
        "sh bash dash zsh ksh ash fish env xargs parallel eval exec source . npx bunx pnpx uvx ssh su watch script "
        "strace gdb osascript expect"
    ).split()
)
_INTERPRETERS = frozenset("python python2 python3 pypy node nodejs deno bun perl ruby php lua Rscript julia".split())


def _runs_anything(words: tuple[str, ...]) -> bool:
    """A shell, or an interpreter that is given a text instead of a file of its own."""
    name = words[0].rpartition("/")[2]
    is_given_text = len(words) == 1 or words[1].startswith("-")
    pair = ":".join(words[:2])
    return name in _RUNNERS or (name in _INTERPRETERS and is_given_text) or pair in _RUNS_GIVEN


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


# Programs whose second word says what they do, so that `git push *` is a promise somebody can judge.
_WITH_SUBCOMMANDS = frozenset(
    (
        "apt apt-get brew bun bundle cargo composer conda deno docker dotnet gh git glab go gradle helm hg just "
        "kubectl meson mix npm nx pip pip3 pipx pnpm podman poetry pdm ruff rustup svn systemctl task terraform tox "
        "turbo uv yarn"
    ).split()
)
# Second words that only name a group: the third one says what is done.
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
# Second words that run whatever they are given, or change what later commands run.
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
# Programs that do one thing with the project, whatever else they are given.
_ONE_THING = frozenset("pytest mypy pyright black isort flake8 pylint eslint prettier tsc jest vitest rspec".split())


def _beginnings(words: tuple[str, ...]) -> list[list[str]]:
    """The first words that may stand for the rest."""
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
