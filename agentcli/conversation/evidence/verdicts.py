"""Compares the claims of a final message with the log: the checks that ran (`runners.toml`), and changes to files."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import PurePath
from typing import Any

from msgspec import Struct, structs

from agentcli.conversation import entries as log
from agentcli.conversation.evidence import Claim, ClaimVerdict, UncheckedClaim
from agentcli.llm.messages import ToolUse
from agentcli.safety.commands.reader.commands import read_commands
from agentcli.safety.commands.reader.syntax import CommandNode
from agentcli.tables import read_table

CallPlace = tuple[int, int]  # the position of a call's reply in the log, and the call's position in that reply
_MAX_OUTPUT_CHARS, _MAX_LINE_CHARS, _MAX_COMMAND_CHARS = 100_000, 200, 2_000  # summaries are at the end of an output
ContentId = Callable[[str], str | None]  # from a path to the id of its current content: "" if deleted, None if unknown
Comparison = tuple[bool | None, Sequence[str]]  # True if a claim is true (None: unknown), and the ids of entries
_VERDICTS: dict[bool | None, ClaimVerdict] = {True: "verified", False: "refuted", None: "unverified"}
_WRITING_TOOLS = ("bash", "file_edit", "file_write")
_NOT_STARTED = (126, 127)  # exit codes if a command cannot be run (bash(1), EXIT STATUS)
_ALL_TESTS = frozenset("run all auto test tests src test/ tests/ ./... .".split())  # arguments that select all tests


class FinishedCall(Struct, frozen=True, kw_only=True):
    """A call with its result. A call of `bash` has a command, perhaps without an exit code."""

    name: str
    text_with_paths: str  # arguments and discarded changes, which name the files that the call should have changed
    at: CallPlace
    entry_id: str
    is_error: bool
    command: str = ""
    exit_code: int | None = None
    output: str = ""


class CheckRun(Struct, frozen=True, kw_only=True):
    """A check, such as a test run, that a command ran."""

    kind: str
    program: str
    call: FinishedCall  # that ran it
    passed: bool | None  # None if its outcome is unknown
    is_partial: bool  # True if it did not check everything
    counts: dict[str, int]  # the numbers in its summary, by name, such as `failed`


class ActivityRecord:
    """The calls and file changes in a conversation's log. If it `is_complete`, no changes are missing."""

    def __init__(
        self,
        path: Iterable[log.Entry],
        cwd: str,
        content_id: ContentId = lambda path: None,
        *,
        is_complete: bool = True,
    ) -> None:
        self.cwd, self.content_id, self.is_complete = cwd, content_id, is_complete
        self.changes: list[tuple[log.FileChange, CallPlace, str]] = []  # each with its call, and the id of its entry
        self.calls: list[FinishedCall] = []
        self.turn_start: CallPlace = (0, 0)  # the start of the newest turn
        started: dict[str, tuple[CallPlace, ToolUse]] = {}  # calls, by id
        for n, entry in enumerate(path):
            match entry.body:
                case log.User(is_reminder=False):
                    self.turn_start = (n, 0)
                case log.Assistant(content=content):
                    uses = [block for block in content if isinstance(block, ToolUse)]
                    started |= {call.id: ((n, position), call) for position, call in enumerate(uses)}
                case log.CallAllowed(id, dict(input)) if id in started:  # the person changed what the model wrote
                    started[id] = (started[id][0], structs.replace(started[id][1], input=input))
                case log.FilesChanged(id, changes):
                    at = started[id][0] if id in started else (n, 0)
                    self.changes += [(change, at, entry.id) for change in changes]
                case log.FilesRestored(_, changes):
                    self.changes += [(change, (n, 0), entry.id) for change in changes]
                case log.Result() as result:
                    at, call = started.get(result.result.tool_use_id, ((n, 0), None))
                    self.calls.append(_finished_call(at, entry.id, call.input if call else {}, result))

    @cached_property
    def runs(self) -> list[CheckRun]:
        # Computed only if a claim needs it, because reading a command takes about a millisecond.
        return [run for call in self.calls if call.command for run in find_runs(call)]

    def is_stale(self, run: CheckRun) -> bool:
        """Return True if source files have changed since a run, so that it proves nothing about them."""
        return any(at > run.call.at and self._is_source(change) for change, at, _ in self.changes)

    def is_claim_about(self, change: log.FileChange, claim: UncheckedClaim) -> bool:
        """Return True if a claim names the changed file, perhaps only by the end of its path, or names no file."""
        path, named = PurePath(change.path), PurePath(claim.target).parts
        return not claim.target or path == PurePath(self.cwd, claim.target) or path.parts[-len(named) :] == named

    def _is_source(self, change: log.FileChange) -> bool:
        path, excluded = PurePath(change.path.removeprefix(f"{self.cwd}/")), runner_tables()["no_source"]
        is_folder = any(state is not None and state.kind == "folder" for state in (change.before, change.after))
        is_excluded = path.suffix in excluded["endings"] or path.name in excluded["names"]
        return not (is_folder or is_excluded or set(path.parts) & set(excluded["folders"]))


def _finished_call(at: CallPlace, entry_id: str, arguments: dict[str, Any], result: log.Result) -> FinishedCall:
    data = result.structured if isinstance(result.structured, dict) else {}
    applied = data.get("kept") or ()  # the names of a dry run's changes that were applied
    discarded = [name for change in data.get("changes") or () if (name := change.get("name", "")) not in applied]
    is_bash = result.name == "bash"
    # The exit code of a dry run proves nothing if all its changes were discarded.
    has_exit_code = is_bash and not data.get("timed_out") and (applied or not discarded)
    return FinishedCall(
        name=result.name,
        text_with_paths="\n".join([*map(str, arguments.values()), *discarded]),
        at=at,
        entry_id=entry_id,
        is_error=result.result.is_error or bool(discarded),  # even if its other changes were applied
        command=str(arguments.get("command", "")) if is_bash else "",
        exit_code=data.get("exit_code") if has_exit_code else None,
        output=str(data.get("output", "")) if is_bash else "",
    )


@cache
def runner_tables() -> dict[str, Any]:
    return read_table(__file__, "runners")


@cache
def _runners() -> list[tuple[dict[str, Any], re.Pattern[str]]]:
    """Return the rows of programs, each with a pattern for the commands that run them, perhaps through wrappers."""
    wrapper = rf"(?:{'|'.join(runner_tables()['wrappers'])}|python[\d.]*|-\S*|\w+=\S*|[\d.]+[smh]?) "
    # In `env CI=1 timeout 5m pytest -q`, all words before pytest are wrappers. Each matches as an atomic group, so that
    # the search does not backtrack in a long command.
    start = rf"(?:(?=(?P<wrapper>{wrapper}))(?P=wrapper))*?(?=(?:\S*/)?(?P<program>\S+))"
    return [
        (row, re.compile(rf"{start}(?:{'|'.join(map(_program_pattern, row['names']))})(?P<rest>(?: \S+)*)"))
        for row in runner_tables()["runner"]
    ]


def _program_pattern(name: str) -> str:
    """Return a pattern for a program and words that follow it in this order, perhaps with other words between them.

    `npm run test*` also matches `npm --silent run test:unit`. After `make $`, only options and `NAME=value` may follow.
    """
    words = [re.escape(word).replace(r"\*", r"\S*") for word in name.removesuffix(" $").split()]
    words[0] = ("" if "/" in name else r"(?:\S*/)?") + words[0].replace("python", r"python[\d.]*")
    only_options_follow = r"(?=(?: (?:[^a-zA-Z ]\S*|\S*=\S*))*$)"
    return r"(?: \S+)*? ".join(words) + (only_options_follow if name.endswith(" $") else "")


def _checks_in(command: CommandNode) -> Iterator[tuple[dict[str, Any], re.Match[str]]]:
    """Yield the rows of programs that a simple command runs, each with the match of its words."""
    words = [re.sub(r"\s", "_", word.text) for word in command.words if word.text]
    if not set(words) & set(runner_tables()["idle"]):  # such as --help, with which no check runs
        text = " ".join(words)[:_MAX_COMMAND_CHARS]
        yield from ((row, found) for row, pattern in _runners() if (found := pattern.fullmatch(text)))


@lru_cache(maxsize=500)
def check_kinds(command: str) -> list[str]:
    parts = (part for pipeline in read_commands(command).commands for part in pipeline.parts)
    return [kind for part in parts for row, _ in _checks_in(part) for kind in row["kinds"]]


def find_runs(call: FinishedCall) -> Iterator[CheckRun]:
    """Yield the checks that a command ran, with what its exit code and its output say about each of them."""
    output = "\n".join(line[:_MAX_LINE_CHARS] for line in call.output[-_MAX_OUTPUT_CHARS:].splitlines())
    for part, code in _simple_commands(call.command, call.exit_code):
        # Some checks print nothing if they pass. An empty output shows that only if the output did not go to a file.
        is_redirected = any(redirect.operator in (">", ">>", "&>", ">|") for redirect in part.redirects)
        for row, match in _checks_in(part):
            arguments = [word.partition("=")[0] for word in match["rest"].split()]
            names = [word for word in arguments if not (word.startswith("-") or word.isdigit() or word in _ALL_TESTS)]
            # The check is partial if the command names tests or files, or selects some by an option.
            is_partial = bool(names) or any(word in row.get("selects", ()) for word in arguments)
            for kind in row["kinds"]:
                patterns = runner_tables()["summary"][kind]
                counts = _counts(patterns, output)
                passed = _outcome(patterns, code, output, counts, is_redirected=is_redirected)
                yield CheckRun(
                    kind=kind,
                    program=match["program"],
                    call=call,
                    passed=passed if call.exit_code is not None else None,  # stopped, or its changes were discarded
                    is_partial=is_partial,
                    counts=counts,
                )


def _simple_commands(command: str, exit_code: int | None) -> Iterator[tuple[CommandNode, int | None]]:
    """Yield the simple commands of a command, each with its exit code; None if other commands hide it."""
    script, auxiliary = read_commands(command).commands, runner_tables()["auxiliary"]
    programs = [part.words[0].text for pipeline in script for part in pipeline.parts if part.words]
    # It is unknown which of several commands failed; auxiliary ones, such as cd, are assumed to succeed.
    is_ambiguous = bool(exit_code) and sum(program not in auxiliary for program in programs) > 1
    code = None if is_ambiguous else exit_code
    for n, pipeline in enumerate(script):
        is_decisive = all(later.operator_after == "&&" for later in script[n:-1])  # if it fails, no later one runs
        for part in pipeline.parts:
            is_last = part is pipeline.parts[-1]  # a pipeline has the exit code of its last command
            yield part, code if is_decisive and (is_last or "pipefail" in command) else None


def _counts(patterns: dict[str, Any], output: str) -> dict[str, int]:
    """Return how many tests passed, failed and so on, added up over all summary lines in an output."""
    counts: Counter[str] = Counter()
    for pattern in patterns["counts"]:
        for match in re.finditer(pattern, output, re.MULTILINE):
            counts.update({name: int(number) for name, number in match.groupdict().items() if number})
    return counts


def _outcome(
    patterns: dict[str, Any], code: int | None, output: str, counts: dict[str, int], *, is_redirected: bool
) -> bool | None:
    """Return True if a check passed, by its exit code and its output; None if neither is conclusive."""

    def shows(key: str) -> bool:
        return any(re.search(pattern, output, re.MULTILINE) for pattern in patterns[key])

    if shows("nothing") or code in _NOT_STARTED:
        return None
    if counts.get("failed") or shows("bad"):
        return False
    is_good = any(counts.values()) or shows("good")
    if code is None:  # another command's code hid it, as in a pipe
        # Checks that are marked so print nothing if they pass.
        passed_silently = patterns.get("is_silent") and not is_redirected and not output.strip()
        return True if is_good or passed_silently else None
    if code and is_good:  # the tests passed, but perhaps something like the coverage was too low
        return None
    return code == 0


def check_claims(claims: Iterable[UncheckedClaim], record: ActivityRecord) -> Iterator[Claim]:
    """Yield each claim with the verdict of the log, and the entries on which the verdict is based."""
    comparisons = {"file": _compare_files, "command": _compare_command, "checks": _compare_all_checks}
    for claim in claims:
        compare = comparisons.get(claim.topic, _compare_check)  # other topics are kinds of checks, such as "tests"
        is_true, entries = compare(claim, record)
        subject = claim.target if claim.topic in ("file", "command") else ""
        yield Claim(claim.text, claim.kind, _VERDICTS[is_true], tuple(dict.fromkeys(entries)), subject)


def _compare_check(claim: UncheckedClaim, record: ActivityRecord) -> Comparison:
    """Compare a claim that a check passed or failed with the newest run that it can be about."""
    of_kind = [run for run in record.runs if run.kind == claim.topic]
    run = next((run for run in reversed(of_kind) if _can_be_about(claim, run)), None)
    if run is None or run.passed is None:
        return None, [run.call.entry_id] if run else []
    last_runs = {run.program: run for run in of_kind}.values()  # of each program
    is_true: bool | None = run.passed is claim.is_good  # not `is_good`: the claim is that the check failed
    if claim.names and not run.passed and (claim.is_good or claim.count is None):
        is_true = None  # the run failed, perhaps in other tests than those that the claim names; a count is compared
    elif claim.count is not None and claim.topic == "tests":
        is_of_one_program = len(last_runs) == 1 or claim.target  # otherwise the number may be a sum
        is_true = _compare_numbers(claim, run) if run.counts and is_of_one_program else None
    if is_true and claim.is_good:
        is_too_small = claim.is_all and claim.count is None and run.is_partial  # only some tests ran
        # While no file has changed, a failure of another program contradicts the claim.
        failed = [other for other in last_runs if other.passed is False and other is not run]
        if is_too_small or record.is_stale(run) or not all(map(record.is_stale, failed)):
            is_true = None
    return is_true, [run.call.entry_id]


def _compare_numbers(claim: UncheckedClaim, run: CheckRun) -> bool | None:
    """Compare a claim's numbers with a run's; return None if they agree, but the claim leaves failed tests open."""
    failed = run.counts.get("failed", 0)
    total = run.counts.get("total", run.counts.get("passed", 0) + failed)
    # A claim may or may not include skipped tests among those that passed.
    counts = {total - failed, run.counts.get("passed", total - failed)} if claim.is_good else {failed}
    if claim.count not in counts or claim.out_of not in (None, total):
        return False
    if run.passed is claim.is_good:
        return True
    # From here on, the numbers agree and others failed. `12 of 14 tests pass` admits that.
    if claim.out_of is not None:
        return claim.out_of != claim.count
    return False if claim.is_all else None  # after `12 tests pass`, the others may have been meant to fail


def _can_be_about(claim: UncheckedClaim, run: CheckRun) -> bool:
    """Return True if a run is of the program that a claim names, and covers the tests and files that it names."""
    words = [word for word in claim.target.lower().split() if not word.startswith("-")]
    is_covered = not run.is_partial or all(name in run.call.command + run.call.output for name in claim.names)
    return is_covered and all(word in run.call.command.lower() for word in words)


def _compare_all_checks(claim: UncheckedClaim, record: ActivityRecord) -> Comparison:
    """Compare a claim such as `all checks pass` with the last run of each program."""
    runs = list({(run.kind, run.program): run for run in record.runs}.values())
    failed = [run.call.entry_id for run in runs if run.passed is False]
    if failed:
        return not claim.is_good, failed
    all_passed = bool(runs) and all(run.passed and not record.is_stale(run) for run in runs)
    return claim.is_good if all_passed else None, [run.call.entry_id for run in runs]


def _compare_command(claim: UncheckedClaim, record: ActivityRecord) -> Comparison:
    """Compare a claim that a command ran, passed or failed with the last call that contains it."""
    named = " ".join(claim.target.split())
    calls = [(call, command) for call in record.calls if named in (command := " ".join(call.command.split()))]
    if not calls:  # perhaps it ran inside a script
        return None, []
    call, command = calls[-1]
    has_outcome = claim.kind != "command_ran"
    # After `;` or in a pipeline, but not after `&&`, the exit code may be that of another command.
    is_code_hidden = re.search(r"[|;&]", command.replace("&& ", "")) or not command.endswith(named)
    if call.exit_code is None or (is_code_hidden and has_outcome):
        return None, [call.entry_id]
    # `count` is the exit code that the claim names.
    is_outcome_true = (call.exit_code == 0) is claim.is_good and claim.count in (None, call.exit_code)
    return is_outcome_true or not has_outcome, [call.entry_id]


def _compare_files(claim: UncheckedClaim, record: ActivityRecord) -> Comparison:
    """Compare a claim that a file was created, changed, deleted or left unchanged with the changes in the log."""
    found = [(change, at, id) for change, at, id in record.changes if record.is_claim_about(change, claim)]
    if claim.kind == "file_unchanged":  # such a claim is about the newest turn
        of_turn = [(change, id) for change, at, id in found if at >= record.turn_start]
        if of_turn:  # the claim is true only if these changes cancel each other out
            (first, _), (last, _) = of_turn[0], of_turn[-1]
            # A claim without a target says that no file changed.
            is_unchanged = bool(claim.target) and log.is_same_state(first.before, last.after)
            return is_unchanged, [id for _, id in of_turn]
        # In an incomplete record any call of the turn may have changed the file.
        is_known = record.is_complete or not any(call.at >= record.turn_start for call in record.calls)
        return True if is_known else None, []
    if not found:  # the claim is false if the call that should have changed the file failed
        failed_writes = (call for call in record.calls if call.is_error and call.name in _WRITING_TOOLS)
        failed = [call.entry_id for call in failed_writes if PurePath(claim.target).name in call.text_with_paths]
        return False if failed else None, failed[-1:]
    (first, _, first_id), (last, _, last_id) = found[0], found[-1]
    is_true = {
        "file_created": first.before is None and last.after is not None,
        "file_deleted": last.after is None and any(change.before for change, _, _ in found),
        "file_changed": last.after is not None and not log.is_same_state(first.before, last.after),
    }[claim.kind]
    # A change that the log does not have may have made a confirmed claim false since. `content_id` returns None if it
    # does not know the content, and "" if there is no file.
    is_outdated = record.content_id(last.path) not in (None, last.after.content if last.after else "")
    return None if is_true and is_outdated else is_true, [first_id, last_id]
