"""Reads commands that check something, and what their exit codes and outputs say of the outcome."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from agentcli.safety.commands.reader.commands import read_commands
from agentcli.safety.commands.reader.syntax import Command, Pipeline

LONGEST_READ = 100_000  # characters of an output; summaries stand at its end
LONGEST_LINE = 200  # characters
_NOT_STARTED = (126, 127)  # bash(1), EXIT STATUS
_CODE_FILE = re.compile(r"\.(?:py|[cm]?[jt]sx?|go|rs|rb|java|kt|php|exs?|swift|cs|c|cc|cpp|lua|bats|sh)\b")
_OPTION = re.compile(r"-|\w+=|[\d.]+[smh]?$")
_ECHOED = re.compile(r"echo [^|;&]*\$\?")
_LAST_NUMBER = re.compile(r"(\d{1,3})\s*\Z")
_WHOLE = {"./...", "...", "tests/", "test/", "./tests", "./test", "src/", "./"}


class Run(Struct, frozen=True):
    """A check that ran. `passed` is None where its outcome cannot be known.

    `at` is its place among the calls, `program` names the kind of program, `command` is all that was run with it.
    """

    kind: str
    program: str
    command: str
    output: str
    at: tuple[int, int]
    entry_id: str
    passed: bool | None
    is_partial: bool = False
    counts: Counts | None = None


class Counts(Struct, frozen=True):
    """Numbers in the summary of an output; None where it has none."""

    passed: int | None
    failed: int | None
    total: int | None

    @property
    def fits(self) -> set[int]:
        """What a claim may call the number of tests that passed."""
        total = self.total if self.total is not None else (self.passed or 0) + (self.failed or 0)
        return {total - (self.failed or 0)} | ({self.passed} if self.passed is not None else set())

    @property
    def all(self) -> set[int]:
        """What a claim may call the number of all tests."""
        return {n for n in (self.total, (self.passed or 0) + (self.failed or 0)) if n is not None}


@cache
def tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("runners.toml").read_text("utf-8"))


def runs_of(command: str, exit_code: int | None, output: str, at: tuple[int, int], entry_id: str) -> list[Run]:
    """The checks in a command; without an exit code it did not come to its end."""
    output = "\n".join(line[:LONGEST_LINE] for line in output[-LONGEST_READ:].splitlines())
    script = read_commands(command).script
    parts = [(n, part, is_last) for n, pipeline in enumerate(script) for part, is_last in _parts(pipeline, command)]
    found = []
    for n, part, is_last in parts:
        words = [word.text for word in part.words]
        is_alone = not any(_matters(other) for _, other, _ in parts if other is not part)
        code = _code_of(script, n, exit_code, is_alone=is_alone) if is_last else None
        if (
            code is None
            and is_alone
            and is_last
            and (echoed := _ECHOED.search(command) and _LAST_NUMBER.search(output))
        ):
            code = int(echoed[1])
        is_elsewhere = any(redirect.operator in (">", ">>", "&>", ">|") for redirect in part.redirects)
        for runner, rest in _runners(words):
            for kind in runner["kinds"]:
                counts = _counts(kind, output)
                passed = None
                if exit_code is not None:
                    passed = _outcome(kind, code, output, counts, is_elsewhere=is_elsewhere)
                program, is_partial = _base(words[len(words) - len(rest) - 1]), _is_partial(runner, rest)
                found.append(Run(kind, program, command, output, at, entry_id, passed, is_partial, counts))
    return found


@lru_cache(maxsize=500)
def kinds_named(command: str) -> list[str]:
    """The kinds of checks that a command is, by its text."""
    script = read_commands(command).script
    words = [[word.text for word in part.words] for pipeline in script for part in pipeline.parts]
    return [kind for each in words for runner, _ in _runners(each) for kind in runner["kinds"]]


def _parts(pipeline: Pipeline, command: str) -> Iterator[tuple[Command, bool]]:
    """The commands of a pipeline, each with whether the exit code of the pipeline is its own."""
    fails_with_any = "pipefail" in command
    for part in pipeline.parts:
        is_last = fails_with_any or part is pipeline.parts[-1]
        if part.subshell is None:
            yield part, is_last
        for inner in part.subshell or ():
            yield from ((each, is_last and is_own) for each, is_own in _parts(inner, command))


def _matters(part: Command) -> bool:
    return bool(part.words) and part.words[0].text not in tables()["asides"]


def _code_of(script: Sequence[Pipeline], n: int, exit_code: int | None, *, is_alone: bool) -> int | None:
    """The exit code of one pipeline of a list, by that of the whole; None where others hide it."""
    if any(pipeline.then != "&&" for pipeline in script[n:-1]):
        return None
    is_own = is_alone or (n == len(script) - 1 and n > 0 and script[n - 1].then not in ("&&", "||"))
    return exit_code if is_own or not exit_code else None


def _runners(words: Sequence[str]) -> Iterator[tuple[dict[str, Any], Sequence[str]]]:
    """The rows of programs that a simple command runs, each with the words behind the program's name."""
    known = tables()
    if any(word in known["idle"] for word in words):
        return
    starts = {0, _behind_wrappers(words)}
    for runner in known["runner"]:
        found = (_after(words[start:], name.split()) for start in starts for name in runner["names"])
        if (rest := next((rest for rest in found if rest is not None), None)) is not None:
            yield runner, rest


def _behind_wrappers(words: Sequence[str]) -> int:
    """Where the command begins that wrappers run."""
    at = 0
    while wrapper := next((name for name in tables()["wrappers"] if _after(words[at:], name.split()) is not None), ""):
        at = len(words) - len(_after(words[at:], wrapper.split()) or ())
        if wrapper.startswith(("docker", "podman")):  # their options, and a container
            at = next((n for n in range(at, len(words)) if _base(words[n]) in _programs()), at)
        while at < len(words) and _OPTION.match(words[at]):
            at += 1
    return at


@cache
def _programs() -> set[str]:
    return {name.split()[0] for runner in tables()["runner"] for name in runner["names"]}


def _base(word: str) -> str:
    name = PurePosixPath(word).name
    return "python" if re.fullmatch(r"python[\d.]*", name) else name


def _after(words: Sequence[str], name: Sequence[str]) -> Sequence[str] | None:
    """The words behind a name whose first word begins them, and whose others follow in order; None if it is not so."""
    if not words or not (fnmatchcase(_base(words[0]), name[0]) or ("/" in name[0] and fnmatchcase(words[0], name[0]))):
        return None
    at = 1
    for wanted in name[1:]:
        if wanted == "$":
            return None if any(word[0].isalpha() and "=" not in word for word in words[at:] if word) else words[at:]
        while at < len(words) and not fnmatchcase(words[at], wanted):
            at += 1
        if at == len(words):
            return None
        at += 1
    return words[at:]


def _is_partial(runner: dict[str, Any], words: Sequence[str]) -> bool:
    """True if a run of tests leaves some out."""
    valued = tables()["valued"]
    for n, word in enumerate(words):
        if word.split("=")[0] in runner.get("selects", ()):
            return True
        if word.startswith("-") or word in _WHOLE or (n and words[n - 1] in valued):
            continue
        if "::" in word or _CODE_FILE.search(word) or "/" in word.strip("/"):
            return True
        if (
            runner.get("by_word")
            and word not in ("run", "--", "all", "watch", "src", "tests", "test")
            and word.isidentifier()
        ):
            return True
    return False


def _counts(kind: str, output: str) -> Counts | None:
    sums: dict[str, int] = {}
    for pattern in tables()["summary"][kind]["counts"]:
        for match in re.finditer(pattern, output, re.MULTILINE):
            for name, number in match.groupdict().items():
                if number is not None:
                    sums[name] = sums.get(name, 0) + int(number)
    return Counts(sums.get("passed"), sums.get("failed"), sums.get("total")) if sums else None


def _outcome(kind: str, code: int | None, output: str, counts: Counts | None, *, is_elsewhere: bool) -> bool | None:
    """True if a check passed, by its exit code if that is known, and by what it printed (or not: `is_elsewhere`)."""
    summary = tables()["summary"][kind]
    if any(re.search(pattern, output, re.MULTILINE) for pattern in summary["nothing"]):
        return None
    if code in _NOT_STARTED:
        return None
    says_bad = bool(counts and counts.failed) or _has(summary["bad"], output)
    says_good = bool(counts and not counts.failed and any(counts.fits)) or _has(summary["good"], output)
    if says_bad:
        return False
    if code is None:
        is_quiet = summary.get("is_silent") and not output.strip() and not is_elsewhere
        return True if says_good or is_quiet else None
    if code != 0 and says_good:
        return None  # something else of it failed, such as a required coverage
    return code == 0


def _has(patterns: Sequence[str], output: str) -> bool:
    return any(re.search(pattern, output, re.MULTILINE) for pattern in patterns)
