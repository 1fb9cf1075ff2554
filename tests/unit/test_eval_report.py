"""Reports of eval runs: their contents, and that nothing in them runs or links elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from markdown_it import MarkdownIt

from agentcli.cli.subcommands.eval import comparison_as_json
from agentcli.evals.report import MAX_FAILURES, as_markdown, as_page
from agentcli.evals.runs import compare
from agentcli.evals.store import CheckResult, EvalRun, Outcome, PlannedTask, RunPlan, Spent, Variant, Work
from agentcli.llm.messages import Usage
from tests.rows import each_row

HOSTILE = "<script>alert(1)</script>\"' onload=x | `a` ``b`` @everyone #1\n\n# No heading\x1b[31m\u202e [l](a/b.html)"
KEY = "ghp_" + "R7tQ2mX9vL4bN8cK1sD6fH3jP5wZ0yEaUgTi"


def task(name: str, difficulty: str = "easy", version: str = "1") -> PlannedTask:
    return PlannedTask(name, version, f"Title of {name}", difficulty)


def run_of(*outcomes: Outcome, tasks: tuple[PlannedTask, ...] = (), ended: float | None = 2.0, **about: Any) -> EvalRun:
    tasks = tasks or tuple(task(name) for name in dict.fromkeys(outcome.task for outcome in outcomes))
    samples = max((outcome.sample for outcome in outcomes), default=1)
    plan = RunPlan(variant=Variant(model="scripted/reference"), tasks=tasks, samples=samples, **about)
    return EvalRun(id="1124-1200-abcd", created=1.0, ended=ended, plan=plan, outcomes=outcomes)


def passed(name: str, sample: int = 1, cost_usd: float | None = 0.5) -> Outcome:
    spent = Spent(3.0, cost_usd, Usage(100, 20, 0, 60))
    return Outcome(task=name, sample=sample, check=CheckResult(True, 1.0), spent=spent)


def failed(name: str, sample: int = 1, reason: str = "no", **more: Any) -> Outcome:
    return Outcome(task=name, sample=sample, check=CheckResult(reason=reason), **more)


RUNS = {
    "plain": run_of(passed("a"), failed("b"), tasks=(task("a"), task("b", "hard"))),
    "unknown costs": run_of(passed("a"), passed("b", cost_usd=None), failed("b", 2)),
    "unfinished": run_of(passed("a"), tasks=(task("a"), task("b")), ended=None),
    "empty": run_of(tasks=(task("a"),), ended=None),
    "without tasks": run_of(),
    "large": run_of(*(failed(f"t{n}", sample) for n in range(100) for sample in (1, 2, 3))),
    "hostile": run_of(
        failed(HOSTILE, reason=HOSTILE), tasks=(PlannedTask(HOSTILE, "1", HOSTILE, HOSTILE),), name=HOSTILE
    ),
}


@each_row("run", RUNS.values())
def test_a_page_needs_no_network_and_runs_nothing(run: EvalRun) -> None:
    links = {(one.task, one.sample): f"t/{one.sample} #.html" for one in run.outcomes}
    text, found = as_page(run, links), []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(text)
    assert not {"script", "link", "img", "iframe", "base", "form"} & {tag for tag, _ in found}
    names = {name for _, attributes in found for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "style")}
    hrefs = [str(attributes["href"]) for tag, attributes in found if tag == "a"]
    assert hrefs == [f"t/{one.sample}%20%23.html" for one in run.outcomes]
    assert not re.search(r"url\(|@import|[\x00-\x09\x0b-\x1f\u202e]|\bnan\b|<!-- -->", text)


@each_row("run", RUNS.values())
def test_every_line_of_a_table_has_the_same_columns(run: EvalRun) -> None:
    text = as_markdown(run)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3 + len(run.plan.tasks)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {7}
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert sum(token.type == "heading_open" for token in tokens) == 1
    assert not [token for token in tokens if token.type == "html_block"]
    inside = [child for token in tokens for child in token.children or ()]
    assert {child.content for child in inside if child.type == "html_inline"} <= {"<!-- -->"}
    assert not re.search(r"[@#]\w", "".join(child.content for child in inside if child.type != "code_inline"))


def test_a_report_says_what_is_known() -> None:
    tasks = (task("down"), task("up", "hard"), task("new"))
    failure = failed("down", reason=f"x ``` y\nz {KEY}", end="max_turns", work=Work(claims={"refuted": 1}))
    now = run_of(passed("up"), passed("up", 2), failure, failed("down", 2), tasks=tasks, ended=None)
    text, page = as_markdown(now), as_page(now, {})
    assert "| up | hard | 2/2 | $1.00 |" in text
    assert "| down | easy | 0/2 | " in text
    assert "| new | easy | – | – | – | – |" in text
    assert "| all |  | 2/4 | " in text
    assert "- down (attempt 1, max turns): ```` x ``` y z [masked" in text
    assert "✗ down #1: 0.00, 0 requests, $0.0000, 0.0 s, max_turns, 1 false claim" in page
    for one in (text, page):
        assert "unfinished: 4 of 6 attempts done" in one
        assert KEY not in one
    assert f"and {300 - MAX_FAILURES} more" in as_markdown(RUNS["large"])


def test_a_stored_outcome_is_one_flat_object() -> None:
    outcome = failed("a", 2, "no", error="x", spent=Spent(1.5, None), work=Work(requests=3, tools={"bash": 2}))
    row = outcome.as_row()
    assert {key: row[key] for key in ("task", "sample", "passed", "score", "turns", "cost_usd", "seconds")} == {
        "task": "a", "sample": 2, "passed": False, "score": 0.0, "turns": 3, "cost_usd": None, "seconds": 1.5,
    }  # fmt: skip
    assert Outcome.from_row(row) == outcome


def test_a_comparison_as_json_names_the_better_and_the_worse_tasks() -> None:
    before, after = run_of(passed("a"), failed("b"), passed("c")), run_of(failed("a"), passed("b"), passed("c"))
    found = comparison_as_json(compare(before, after))
    assert (found["better"], found["worse"], found["left_out"], found["score_difference"]) == (["b"], ["a"], (), 0.0)
