"""Claims of final messages: which are found, and what the log says of them."""

from collections import Counter
from time import process_time

import pytest

from agentcli.conversation.evidence.claims import find_claims
from agentcli.conversation.evidence.verdicts import ActivityRecord, FinishedCall, check_claims, find_runs
from tests.evidence.corpus import CWD, Log, Row, differences, rows, table
from tests.rows import each_row

WORDINGS = table("wordings")
LOGS = table("logs")
# Commands whose exit codes a pipe hides, their outputs, and whether they passed.
OUTPUTS = table("outputs")


def passed(command: str, exit_code: int, output: str) -> bool | None:
    about = {"name": "bash", "text_with_paths": "", "at": (0, 0), "entry_id": "x", "is_error": False}
    return next(find_runs(FinishedCall(**about, command=command, exit_code=exit_code, output=output))).passed


@pytest.mark.parametrize("half", ["tuning", "measuring"])
def test_at_least_nine_of_ten_messages_are_checked_correctly(half: str) -> None:
    assert len(rows(half)) == 100
    wrong = list(differences(half))
    assert len(wrong) <= 10
    for row, found in wrong:  # what is missed is better than what is wrong
        assert [claim for claim in found if claim not in map(tuple, row.claims) and claim[1] != "unverified"] == []


@each_row("text, kinds", WORDINGS)
def test_claims_are_found_however_they_are_worded(text: str, kinds: list[str]) -> None:
    assert Counter(claim.kind for claim in find_claims(text)) == Counter(kinds)


@each_row("text, log, wanted", LOGS)
def test_the_log_decides(text: str, log: list[str], wanted: list[tuple[str, str]]) -> None:
    assert sorted((claim.kind, claim.verdict) for claim in Row(text, log, []).checked()) == sorted(map(tuple, wanted))


@each_row("command, output, outcome", OUTPUTS)
def test_a_summary_shows_what_a_pipe_hides(command: str, output: str, outcome: bool | None) -> None:
    assert passed(command, 0, output) is outcome


@each_row("command, output, outcome", [row for row in OUTPUTS if row[2] is not None])
def test_an_exit_code_is_not_doubted_where_the_output_agrees(command: str, output: str, outcome: bool) -> None:
    assert passed(command.partition(" 2>&1 |")[0], 0 if outcome else 1, output) is outcome


def test_a_claim_names_the_entries_that_speak_for_it() -> None:
    log = Log(["write a.py", "$ pytest -q => 0\n3 passed in 0.1s"])
    found = find_claims("I created `a.py`. All 3 tests pass.")
    claims = list(check_claims(found, ActivityRecord(log.entries, CWD)))
    kinds = {entry.id: type(entry.body).__name__ for entry in log.entries}
    assert [[kinds[id] for id in claim.entries] for claim in claims] == [["FilesChanged"], ["Result"]]
    assert [claim.text for claim in claims] == ["I created a.py.", "All 3 tests pass."]


@pytest.mark.parametrize(("is_complete", "verdict"), [(True, "verified"), (False, "unverified")])
def test_missing_records_of_changes_prove_nothing(is_complete: bool, verdict: str) -> None:
    record = ActivityRecord(Log(["$ ./tidy.sh => 0"]).entries, CWD, is_complete=is_complete)
    claims = check_claims(find_claims("I left `a.py` unchanged."), record)
    assert [claim.verdict for claim in claims] == [verdict]


@pytest.mark.parametrize(
    "text",
    [
        *(word * 5_000 for word in ("tests ", "`a", "all 3 of 4 ", "in on for ", "a.b/", "*a* _b_ ", "⟦p1⟧ ", "1/2 ")),
        "All tests " + "in in for on " * 3_000,
        "created " + "`a.py` and " * 4_000,
        "The tests " + "are now also still both " * 1_800,
        "`" + "npm run x " * 3_000 + "`",
        "\n - a" * 8_000,
        *("\n" * 29_000, "[" * 29_000, "<!--" * 2_000),
        "`pytest` " + "in 1 now " * 70,
    ],
    ids=lambda text: str(text)[:12],
)
def test_no_message_takes_long_to_read(text: str) -> None:
    began = process_time()
    find_claims(text)
    assert process_time() - began < 5


@pytest.mark.parametrize("output", ["1 failed " * 20_000, "=" * 200_000, " " * 200_000, "ok 1 a\n" * 25_000])
@pytest.mark.parametrize(
    "command",
    ["pytest | tail", "eslint . | tail", "make | tail", "npm x " * 5_000 + "; pytest", "-m python " * 99 + "x; make"],
)
def test_no_output_takes_long_to_read(command: str, output: str) -> None:
    began = process_time()
    passed(command, 0, output)
    assert process_time() - began < 5


def test_a_test_that_is_called_like_a_runner_is_claimed_by_its_name() -> None:
    (claim,) = find_claims("`test_run_tests` passes.")
    assert (claim.kind, claim.target, claim.names) == ("tests_pass", "", ("test_run_tests",))
