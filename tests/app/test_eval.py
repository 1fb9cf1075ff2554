"""`agentcli eval`: attempts are fair, confined and stored, and two runs are compared by what chance would do."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib.util import find_spec
from typing import Any

import pytest

from agentcli.evals.attempt import temporary_folder
from agentcli.evals.task import BUNDLED
from tests.app.eval_tasks import CHECK, SOLVES, add_task, evaluated
from tests.app.running import Place

pytestmark = pytest.mark.slow


def test_a_run_says_what_passed_and_what_it_took(place: Place) -> None:
    add_task(place, "solved", more='difficulty = "easy"')
    add_task(place, "unsolved", replies=[{"text": "I created `answer.txt`."}])
    told = evaluated(place, "--samples", "2")
    assert (told["passed"], told["total"]) == (2, 4)
    solved, _, unsolved, _ = told["tasks"]
    assert (solved["task"], solved["sample"], solved["passed"], solved["score"]) == ("solved", 1, True, 1.0)
    assert (solved["turns"], solved["tools"]) == (2, {"file_write": 1})
    assert solved["usage"]["input_tokens"] > 0
    assert solved["claims"] == {"verified": 1}
    assert (unsolved["passed"], unsolved["claims"]) == (False, {"unverified": 1})
    assert "could not read answer.txt" in unsolved["reason"]


def test_an_agent_that_does_nothing_passes_nothing(place: Place) -> None:
    add_task(place, "solved")
    assert evaluated(place, model="scripted/nothing")["passed"] == 0


def test_the_last_line_of_a_check_is_the_score(place: Place) -> None:
    add_task(place, "half", check="#!/bin/sh\necho two of four\necho 0.5\nexit 1\n")
    (half,) = evaluated(place)["tasks"]
    assert (half["passed"], half["score"]) == (False, 0.5)


def test_the_agent_sees_neither_the_solution_nor_the_person(place: Place) -> None:
    """Nor does what it leaves behind change the task for the next attempt."""
    (place.home / "AGENTS.md").parent.mkdir(parents=True, exist_ok=True)
    (place.home / "AGENTS.md").write_text("Always say hello.\n")
    (place.home / "config.toml").write_text('[hooks]\nPreToolUse = [{hooks = [{command = "touch hooked"}]}]\n')
    tasks = place.folder.parent / "tasks"
    look = f"ls -A; cat {tasks}/*/reference.jsonl {BUNDLED}/*/reference.jsonl; echo x >> README.md"
    folder = add_task(
        place, "looks", replies=[{"tool_calls": [{"name": "bash", "input": {"command": look}}]}, {"text": "done"}]
    )
    told = evaluated(place, "--samples", "2")
    assert (folder / "start" / "README.md").read_text() == "A project.\n"
    for sample in ("1", "2"):
        shown = transcript(place, told["run_id"], "looks", sample)
        assert "README.md" in shown
        assert "tool_calls" not in shown
        assert "Always say hello" not in shown


def transcript(place: Place, run: str, task: str, sample: str) -> str:
    page = place.folder.parent / "report.html"
    assert place.run("eval", "report", run, "-o", str(page)).code == 0
    return (page.with_name("report-transcripts") / f"{task}-{sample}.html").read_text()


def test_a_check_is_confined_and_reported_what_the_agent_did(place: Place) -> None:
    outside = place.folder.parent / "outside"
    check = f"""#!/usr/bin/env python3
from eval_check import calls, record, require
try:
    open({str(outside)!r}, "w").close()
except OSError:
    pass
require([call["input"]["path"] for call in calls("file_write")] == ["answer.txt"], "calls are missing")
require(record()["answer"] == "I created `answer.txt`.", "the answer is missing")
"""
    add_task(place, "checked", check=check)
    assert evaluated(place)["passed"] == 1
    assert not outside.exists()


def test_settings_of_a_run_count_more_than_those_of_a_task(place: Place) -> None:
    add_task(place, "t", more="[limits]\nturns = 25")
    (place.folder / "own.toml").write_text("[limits]\nmax_turns = 1\n[permissions]\nmode = 'plan'\n")
    (one,) = evaluated(place, "--settings", "own.toml")["tasks"]
    assert (one["passed"], one["end"], one["turns"]) == (False, "max_turns", 1)
    assert one["tool_errors"] == {"file_write": 1}  # plan mode


@pytest.mark.full
def test_the_time_of_an_attempt_is_limited(place: Place) -> None:
    slow = {"tool_calls": [{"name": "bash", "input": {"command": "echo 42 > answer.txt; sleep 600"}}]}
    add_task(place, "slow", replies=[slow, {"text": "done"}])
    (one,) = evaluated(place, "--time-limit", "2")["tasks"]
    assert (one["end"], one["seconds"] < 30) == ("timeout", True)


def test_prompts_share_a_session_which_can_be_compacted(place: Place) -> None:
    told = 'from eval_check import record, require\nrequire(record()["compactions"] == 1, "none")\n'
    check = f"#!/usr/bin/env python3\n{told}"
    talk = [{"text": f"reply {n} " * 500} for n in range(12)]
    prompts = json.dumps([*[f"prompt {n}" for n in range(11)], "/compact", "the last"])
    add_task(place, "long", check=check, replies=talk, prompt=prompts, more="[settings.compaction]\nkeep_turns = 1")
    (one,) = evaluated(place)["tasks"]
    assert (one["passed"], one["compactions"], one["turns"]) == (True, 1, 12), one


@pytest.mark.full
def test_a_killed_run_continues_and_repeats_nothing(place: Place) -> None:
    """A task that is done leaves a mark outside; each has exactly one in the end."""
    for n in range(4):
        add_task(place, f"t{n}", replies=[*SOLVES[:1], {"text": "I created `answer.txt`.", "delay_ms": 200}])
    tasks = str(place.folder.parent / "tasks")
    arguments = ("eval", "run", "--tasks", tasks, "-m", "scripted/reference", "--parallel", "1")
    process = place.process(*arguments)
    assert process.stderr is not None
    first = process.stderr.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert b"1/4" in first
    (run,) = json.loads(place.run("eval", "list", "--json").out)
    assert (run["finished"], run["passed"] >= 1) == (False, True)
    again = place.run(*arguments)
    assert "Continuing run" in again.err
    made = again.err.count("✓")
    assert made == 4 - run["passed"]
    shown = json.loads(place.run("eval", "show", run["run_id"], "--json").out)
    assert (shown["finished"], shown["passed"]) == (True, 4)
    assert place.run(*arguments, "--json").out.count(run["run_id"]) == 0  # a finished run is not gone on with


def test_the_folder_of_an_attempt_is_removed_however_deeply_it_is_nested() -> None:
    with temporary_folder() as folder:
        inner = os.open(folder, os.O_RDONLY)
        for _ in range(2_000):
            os.mkdir("d", dir_fd=inner)  # a path would be too long
            outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
            os.close(outer)
        os.close(inner)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_running_and_nothing_behind(place: Place, number: int) -> None:
    rooms = place.folder.parent / "rooms"
    rooms.mkdir()
    sleeps = {"tool_calls": [{"name": "bash", "input": {"command": "touch begun; sleep 987"}}]}
    add_task(place, "long", replies=[sleeps, {"text": "done"}])
    arguments = ("eval", "run", "--tasks", str(place.folder.parent / "tasks"), "-m", "scripted/reference")
    process = place.process(*arguments, env={"TMPDIR": str(rooms)})
    until(lambda: any(rooms.glob("agentcli-eval-*/work/begun")))
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, b"To continue this run, repeat the command" in err) == (128 + number, True), err
    assert [*rooms.glob("agentcli-eval-*")] == []
    ran = json.loads(place.run("eval", "list", "--json").out)
    assert [run["finished"] for run in ran] == [False]


def test_attempts_that_failed_for_outside_reasons_are_repeated(place: Place) -> None:
    add_task(place, "down", replies=[{"error": {"kind": "auth"}}])
    assert "failed to run" in evaluated(place, code=1)
    (run,) = json.loads(place.run("eval", "list", "--json").out)
    assert run["finished"] is False
    (place.folder.parent / "tasks/down/reference.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SOLVES))
    assert evaluated(place)["passed"] == 1


def variants(place: Place, *replies: list[dict[str, Any]]) -> None:
    """A run for each model, named a, b, …; all tasks are played by the same replies."""
    for name, model in zip("abc", replies, strict=False):
        evaluated(place, "--name", name, "--samples", "3", model=place.script(*model))


@pytest.mark.full
def test_compare_names_regressions_and_exits_with_1_beyond_chance(place: Place) -> None:
    for n in range(2):
        add_task(place, f"t{n}")
    variants(place, SOLVES, [{"text": "I would rather not."}], SOLVES)
    worse = place.run("eval", "compare", "a", "b")
    assert worse.code == 1
    assert "Worse (regressions): t0, t1." in worse.out
    assert "B is significantly worse" in worse.out
    same = place.run("eval", "compare", "a", "c", "--json")
    assert (same.code, json.loads(same.out)["worse"]) == (0, [])
    better = json.loads(place.run("eval", "compare", "b", "a", "--json").out)
    assert (better["better"], better["score_difference"], better["worse_beyond_chance"]) == (
        ["t0", "t1"],
        1.0,
        False,
    )


def test_one_lost_attempt_is_not_beyond_chance(place: Place) -> None:
    add_task(place, "t")
    for name, model in (("a", SOLVES), ("b", [{"text": "no"}])):
        evaluated(place, "--name", name, model=place.script(*model))
    ran = place.run("eval", "compare", "a", "b")
    assert (ran.code, "but this may be chance" in ran.out, "regressions): t" in ran.out) == (0, True, True)


def test_other_versions_of_a_task_are_not_compared(place: Place) -> None:
    folder = add_task(place, "t")
    evaluated(place, "--name", "a")
    (folder / "check").write_text(CHECK.replace("42", "43"))
    evaluated(place, "--name", "b")
    ran = place.run("eval", "compare", "a", "b")
    assert (ran.code, "no task version in common" in ran.err) == (2, True)


def test_reports(place: Place) -> None:
    add_task(place, "t")
    id = evaluated(place)["run_id"]
    page = place.folder / "report.html"
    assert place.run("eval", "report", id, "-o", str(page)).code == 0
    assert "report-transcripts/t-1.html" in page.read_text()
    assert (place.folder / "report-transcripts/t-1.html").is_file()
    assert "| t " in place.run("eval", "report", id).out.replace("|t", "| t")


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "check").chmod(0o644), "chmod +x"),
        (lambda folder: (folder / "task.toml").write_text("title = 1"), "task.toml"),
        (
            lambda folder: (folder / "task.toml").write_text('title = "t"\nprompt = "p"\n[settings.hooks]\n'),
            "not hooks",
        ),
    ],
)
def test_a_faulty_task_is_reported(place: Place, break_it: Any, says: str) -> None:
    break_it(add_task(place, "t"))
    assert says in evaluated(place, code=2)


def test_wrong_arguments_are_reported(place: Place) -> None:
    add_task(place, "t")
    assert "Unknown task tt (did you mean t?). Choose one of t." in evaluated(place, "tt", code=2)
    assert "Unknown task" in evaluated(place, "", code=2)  # as with an unset variable
    assert "eval list" in place.run("eval", "show", "nope").err
    assert place.run("eval", "report", "nope").code == 2


@pytest.mark.full
def test_a_run_is_made_by_one_program_at_a_time(place: Place) -> None:
    add_task(place, "t", replies=[{"text": "slow", "delay_ms": 3_000}])
    arguments = ("eval", "run", "--tasks", str(place.folder.parent / "tasks"), "-m", "scripted/reference")
    first = place.process(*arguments)
    store = place.home / "state" / "evals.db"
    until(lambda: store.exists() and bool(json.loads(place.run("eval", "list", "--json").out)))
    second = place.run(*arguments)
    assert (second.code, "Another program is running" in second.err) == (2, True)
    first.communicate()


def until(is_so: Any) -> None:
    limit = time.monotonic() + 120  # for what never comes; a loaded machine may take long
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_how_to_install_it(place: Place) -> None:
    ran = place.run("eval", "run", "fix-syntax", "-m", "scripted/reference", "--engine", "ray")
    assert ran.code == 2
    assert "./install.sh --extras ray" in ran.err


def test_a_ray_cluster_gives_the_results_of_this_machine(place: Place) -> None:
    pytest.importorskip("ray")
    add_task(place, "solved")
    add_task(place, "unsolved", replies=[{"text": "I would rather not."}])
    add_task(place, "linked", start={"a.txt": "a", "bin/run": "#!/bin/sh\n"})
    here, there = (evaluated(place, "--samples", "2", "--engine", name, "--new") for name in ("local", "ray"))
    for told in (here, there):
        for outcome in told["tasks"]:
            del outcome["seconds"]
    assert here["tasks"] == there["tasks"]
    assert here["passed"] == 4
