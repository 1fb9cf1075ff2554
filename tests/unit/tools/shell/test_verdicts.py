"""What is harmless, what is asked and what no mode runs; the commands stand in the text files beside this one."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from pathlib import Path

import pytest

from agentcli.tools.shell import Places, analyse
from tests.unit.tools.shell.desk import PLACES, cases, is_readable, judged

DATA = Path(__file__).parents[5] / "shared/data/commands.jsonl"


# Thousands of commands: each group is one test, which names what it did not expect.


def test_what_only_reads_inside_the_workspace_is_harmless() -> None:
    analyses = {command: judged(command) for command in cases("harmless")}
    wrong = {command: analysis.reason for command, analysis in analyses.items() if analysis.verdict != "harmless"}
    assert not wrong
    assert all(segment.verdict == "harmless" for analysis in analyses.values() for segment in analysis.segments)


def test_what_may_write_run_send_or_leave_the_workspace_is_unknown_and_says_why() -> None:
    analyses = {command: judged(command) for command in cases("unknown")}
    assert not {command: found.verdict for command, found in analyses.items() if found.verdict != "unknown"}
    assert not [command for command, found in analyses.items() if not found.reason]


def test_a_catastrophe_is_seen_through_quotes_wrappers_and_variables() -> None:
    verdicts = {command: judged(command).verdict for command in cases("catastrophic")}
    assert not {command: verdict for command, verdict in verdicts.items() if verdict != "catastrophic"}


def test_what_a_person_may_want_is_not_a_catastrophe() -> None:
    analyses = {command: judged(command) for command in cases("never_refused")}
    assert not {command: found.reason for command, found in analyses.items() if found.verdict == "catastrophic"}


@pytest.mark.parametrize(
    ("glob", "found", "verdict"),
    [
        ("cat *.py", ["/ws/a.py", "/ws/b.py"], "harmless"),
        ("cat *.py", ["/ws/a.py", "/home/u/x.py"], "unknown"),
        ("cat *", ["/ws/a"], "harmless"),
        ("cat *", ["/ws/.env"], "unknown"),
        ("cat *", None, "unknown"),
        ("head src/*/x", [], "harmless"),
    ],
)
def test_a_glob_is_judged_by_what_it_finds_where_that_can_be_asked(
    glob: str, found: list[str] | None, verdict: str
) -> None:
    paths = None if found is None else [Path(path) for path in found]
    places = Places(Path("/ws"), (Path("/ws"),), Path("/home/u"), is_readable, lambda pattern: paths)
    assert judged(glob, places).verdict == verdict


def test_paths_are_judged_where_the_shell_stands() -> None:
    below = Places(Path("/ws/src"), (Path("/ws"),), Path("/home/u"), is_readable)
    assert judged("cat ../a", below).verdict == "harmless"
    assert judged("cat ../../a", below).verdict == "unknown"
    assert judged("cd .. && cat a", below).verdict == "harmless"
    assert judged("rm -rf ../../*", below).verdict == "catastrophic"


def test_a_home_folder_is_protected_wherever_it_is() -> None:
    places = Places(Path("/srv/p"), (Path("/srv/p"),), Path("/srv/people/ann"), is_readable)
    for command in ("rm -rf /srv/people/ann", "rm -rf ~", "rm -rf /srv/people/*", "chmod -R 0 $HOME"):
        assert judged(command, places).verdict == "catastrophic"
    assert judged("rm -rf /srv/people/ann/x", places).verdict == "unknown"


# Both really delete everything: a redirection changes nothing about `rm`, and `builtin eval` is `eval`.
LABELLED_TOO_MILDLY = {"rm -rf >'file`name' /", "builtin eval 'rm -rf ~'"}


@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_every_command_of_the_data_is_judged_as_its_label_says() -> None:
    wanted = {"allow": {"harmless"}, "ask": {"unknown"}, "block": {"catastrophic"}}
    wrong = []
    counted: Counter[str] = Counter()
    for line in DATA.read_text(encoding="utf-8").strip().split("\n"):
        row = json.loads(line)
        counted[row["expected"]] += 1
        verdicts = wanted[row["expected"]] | ({"harmless"} if row.get("lenient") else set())
        verdict = analyse(row["input"], places=PLACES).verdict
        if verdict not in verdicts and row["input"] not in LABELLED_TOO_MILDLY:
            wrong.append((row["expected"], verdict, row["input"]))
    assert not wrong
    assert counted["allow"] > 100
    assert counted["block"] > 50
    assert counted["ask"] > 500


def test_a_path_is_asked_about_as_it_was_written() -> None:
    asked: list[str] = []

    def note(path: Path) -> bool:
        asked.append(posixpath.normpath(path))
        return True

    judged("cd src && cat link/../a b", Places(Path("/ws"), (Path("/ws"),), Path("/home/u"), note))
    assert asked == ["/ws/src", "/ws/src/a", "/ws/src/b"]
