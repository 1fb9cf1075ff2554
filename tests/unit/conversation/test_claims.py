"""Claims of final messages: which are found, and what the log says of them."""

from collections import Counter
from time import process_time

import pytest

from agentcli.conversation.evidence.claims import found_claims
from agentcli.conversation.evidence.runs import runs_of
from agentcli.conversation.evidence.verdicts import checked_claims
from tests.evidence.corpus import CWD, Log, Row, differences, rows, table
from tests.rows import each_row

WORDINGS = table("wordings")
LOGS = table("logs")
# Commands whose exit codes a pipe hides, their outputs, and whether they passed.
OUTPUTS = table("outputs")


def test_each_half_of_the_corpus_has_a_hundred_messages() -> None:
    assert [len(rows(half)) for half in ("tuning", "measuring")] == [100, 100]


def test_the_tuning_half_is_judged_right() -> None:
    assert [(row.text, found) for row, found in differences("tuning")] == []


def test_the_measuring_half_is_mostly_judged_right() -> None:
    assert len(list(differences("measuring"))) <= 10


@each_row("text, kinds", WORDINGS)
def test_claims_are_found_however_they_are_worded(text: str, kinds: list[str]) -> None:
    assert Counter(claim.kind for claim in found_claims(text)) == Counter(kinds)


@each_row("text, log, wanted", LOGS)
def test_the_log_decides(text: str, log: list[str], wanted: list[tuple[str, str]]) -> None:
    assert sorted((claim.kind, claim.verdict) for claim in Row(text, log, []).checked()) == sorted(map(tuple, wanted))


@each_row("command, output, passed", OUTPUTS)
def test_a_summary_tells_what_a_pipe_hides(command: str, output: str, passed: bool | None) -> None:
    assert runs_of(command, 0, output, (0, 0), "x")[0].passed is passed


@each_row("command, output, passed", [row for row in OUTPUTS if row[2] is not None])
def test_an_exit_code_is_not_doubted_where_the_output_agrees(command: str, output: str, passed: bool) -> None:
    direct = command.partition(" 2>&1 |")[0]
    assert runs_of(direct, 0 if passed else 1, output, (0, 0), "x")[0].passed is passed


def test_a_claim_names_the_entries_that_speak_for_it() -> None:
    log = Log(["write a.py", "$ pytest -q => 0\n3 passed in 0.1s"])
    claims = checked_claims("I created `a.py`. All 3 tests pass.", log.entries, cwd=CWD, look=lambda path: None)
    kinds = {entry.id: type(entry.body).__name__ for entry in log.entries}
    assert [[kinds[id] for id in claim.entries] for claim in claims] == [["FilesChanged"], ["Result"]]
    assert [claim.text for claim in claims] == ["I created a.py.", "All 3 tests pass."]


def test_where_changes_are_not_recorded_their_absence_says_nothing() -> None:
    log = Log(["$ ./tidy.sh => 0"])
    for is_recorded, verdict in ((True, "verified"), (False, "unverified")):
        claims = checked_claims(
            "I left `a.py` unchanged.", log.entries, cwd=CWD, look=lambda path: None, is_recorded=is_recorded
        )
        assert [claim.verdict for claim in claims] == [verdict]


@pytest.mark.parametrize(
    "text",
    [
        *(word * 5_000 for word in ("tests ", "`a", "all 3 of 4 ", "in on for ", "a.b/", "*a* _b_ ", "⟦p1⟧ ", "1/2 ")),
        "All tests " + "in in for on " * 3_000,
        "created " + "`a.py` and " * 4_000,
        "The tests " + "are now also still both " * 1_800,
    ],
    ids=lambda text: str(text)[:12],
)
def test_no_message_takes_long_to_read(text: str) -> None:
    began = process_time()
    found_claims(text)
    assert process_time() - began < 20


@pytest.mark.parametrize("output", ["1 failed " * 20_000, "=" * 200_000, " " * 200_000, "ok 1 a\n" * 25_000])
@pytest.mark.parametrize("command", ["pytest | tail", "eslint . | tail", "make | tail"])
def test_no_output_takes_long_to_read(command: str, output: str) -> None:
    began = process_time()
    runs_of(command, 0, output, (0, 0), "x")
    assert process_time() - began < 20
