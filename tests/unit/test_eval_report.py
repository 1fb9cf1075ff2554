"""Reports of eval runs: what a page and a table hold, and what nothing in them can do."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt

from agentcli.evals.outcome import Outcome, Variant
from agentcli.evals.report.markdown import MOST_FAILURES, as_markdown
from agentcli.evals.report.page import as_page
from agentcli.evals.store import About, PlannedTask, Run
from agentcli.llm.messages import Usage
from tests.rows import each_row

HOSTILE = "<script>alert(1)</script>\"' onload=x | `a` ``b`` @everyone #1\n\n# No heading\x1b[31m\u202e"
KEY = "ghp_" + "R7tQ2mX9vL4bN8cK1sD6fH3jP5wZ0yEaUgTi"


class Page(HTMLParser):
    """The elements and texts that a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str, **having: str) -> list[dict[str, str | None]]:
        found = [attributes for name, attributes in self.elements if name == tag]
        return [attributes for attributes in found if having.items() <= attributes.items()]


def task(name: str, difficulty: str = "easy", version: str = "1") -> PlannedTask:
    return PlannedTask(name, version, f"Title of {name}", difficulty)


def run_of(*outcomes: Outcome, tasks: tuple[PlannedTask, ...] = (), ended: float | None = 2.0, **about: Any) -> Run:
    tasks = tasks or tuple(task(name) for name in dict.fromkeys(outcome.task for outcome in outcomes))
    samples = max((outcome.sample for outcome in outcomes), default=1)
    variant = Variant("scripted/reference", **about.pop("variant", {}))
    return Run("1124-1200-abcd", 1.0, ended, About(variant, tasks, samples, **about), outcomes)


def passed(name: str, sample: int = 1, **more: Any) -> Outcome:
    more = {"cost_usd": 0.5, "seconds": 3.0, "usage": Usage(100, 20, 0, 60), **more}
    return Outcome(name, sample, True, 1.0, tools={"Read": 2}, **more)


def failed(name: str, sample: int = 1, reason: str = "no", **more: Any) -> Outcome:
    return Outcome(name, sample, reason=reason, **{"tools": {"Edit": 3}, "tool_errors": {"Edit": 1}, **more})


RUNS = {
    "plain": run_of(passed("a"), failed("b"), tasks=(task("a"), task("b", "hard"))),
    "unknown costs": run_of(passed("a", cost_usd=None), failed("b", cost_usd=None)),
    "some unknown costs": run_of(passed("a"), passed("b", cost_usd=None), failed("b", 2)),
    "unfinished": run_of(passed("a"), tasks=(task("a"), task("b")), ended=None),
    "empty": run_of(tasks=(task("a"),), ended=None),
    "without tasks": run_of(),
    "nothing but zeros": run_of(Outcome("a", 1), Outcome("a", 2, reason=" \n")),
    "large": run_of(*(failed(f"t{n}", sample) for n in range(100) for sample in (1, 2, 3))),
    "hostile": run_of(
        failed(HOSTILE, reason=HOSTILE, error=HOSTILE, tools={HOSTILE: 1}),
        tasks=(PlannedTask(HOSTILE, "1", HOSTILE, HOSTILE),),
        name=HOSTILE,
        variant={"system_prompt": HOSTILE, "append_system_prompt": HOSTILE, "settings": {HOSTILE: HOSTILE}},
    ),
}
PAIRS = [(run, baseline) for run in RUNS.values() for baseline in (None, RUNS["plain"], RUNS["empty"], run)]


@pytest.mark.slow
@each_row("run, baseline", PAIRS)
def test_a_page_needs_no_network_and_runs_nothing(run: Run, baseline: Run | None) -> None:
    text = as_page(run, {(one.task, one.sample): f"t/{one.task}.html" for one in run.outcomes}, baseline)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "base", "form"} & {tag for tag, _ in page.elements}
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "style")}
    assert all(re.fullmatch(r"t/[\w%./-]+", link["href"] or "") for link in page.of("a"))
    assert re.search(r"default-src 'none'; style-src 'sha256-[\w+/=]+'; base-uri", text)
    assert not re.search(r"url\(|@import|[\x00-\x09\x0b-\x1f\u202e]|\bnan\b|\binf\b", text)
    assert len(page.of("tbody")) == 1
    assert len(page.of("tr")) == 1 + len(run.outcomes)
    charts = page.of("svg", role="img")
    assert len(charts) == len(page.of("svg"))
    assert all(chart["aria-label"] for chart in charts)


@each_row("run, baseline", PAIRS)
def test_every_line_of_a_table_has_the_same_columns(run: Run, baseline: Run | None) -> None:
    text = as_markdown(run, baseline)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3 + len(run.about.tasks)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8 if baseline else 7}
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert sum(token.type == "heading_open" for token in tokens) == 1
    assert not [token for token in tokens if token.type == "html_block"]
    inside = [child for token in tokens for child in token.children or ()]
    assert {child.content for child in inside if child.type == "html_inline"} <= {"<!-- -->"}
    assert not re.search(r"[@#]\w", "".join(child.content for child in inside if child.type != "code_inline"))


def test_a_page_tells_what_is_known_of_each_attempt() -> None:
    run = run_of(
        passed("a", verified=True, claims={"verified": 2, "refuted": 1}),
        failed("b", reason="It is\nnot right"),
        name="nightly",
        variant={"append_system_prompt": "Be quick."},
    )
    page = Page(as_page(run, {("a", 1): "of #1/a-1.html"}, run))
    text = " ".join(page.texts)
    for told in ("nightly", "1 of 2 passed", "50% verified", "1 false claim", "Title of b", "It is\nnot right"):
        assert told in text
    assert "Be quick." in text
    assert [link["href"] for link in page.of("a")] == ["of%20%231/a-1.html"]
    assert len(page.of("circle", **{"class": "now"})) == len(page.of("circle", **{"class": "before"})) == 2


def test_tokens_stand_for_costs_that_are_not_known() -> None:
    assert "Tokens against quality" in as_page(RUNS["unknown costs"], {})
    page = as_page(RUNS["some unknown costs"], {})
    assert "Cost against quality" in page
    assert "1 task of unknown cost left out" in page


def test_an_unfinished_run_says_so() -> None:
    for text in (as_page(RUNS["unfinished"], {}), as_markdown(RUNS["unfinished"])):
        assert "unfinished: 1 of 2 attempts made" in text


def test_easy_tasks_come_first_on_a_page() -> None:
    run = run_of(passed("z"), passed("y"), tasks=(task("z", "hard"), task("y", "easy")))
    page = as_page(run, {})
    assert page.index("Title of y") < page.index("Title of z")


def test_arrows_tell_what_changed() -> None:
    before = run_of(passed("up"), failed("up", 2), passed("down"), passed("down", 2), passed("new"))
    tasks = (task("up"), task("down"), task("new", version="2"))
    now = run_of(passed("up"), passed("up", 2), failed("down"), failed("down", 2), passed("new"), tasks=tasks)
    text = as_markdown(now, before)
    assert "| up | easy | 2/2 ↑ | 1/2 |" in text
    assert "| down | easy | 0/2 ↓ | 2/2 |" in text
    assert "| new | easy | 1/1 | – |" in text  # another version of the task
    assert "| all |  | 3/5 | 3/4 |" in text


def test_failures_are_named_with_their_reasons() -> None:
    text = as_markdown(run_of(failed("a", reason="x ``` y\nz", end="max_turns")))
    assert "- a (attempt 1, max turns): ```` x ``` y z ````" in text
    assert f"and {300 - MOST_FAILURES} more" in as_markdown(RUNS["large"])


def test_no_secret_of_a_check_or_the_settings_is_shown() -> None:
    variant = {"system_prompt": KEY, "settings": {"key": KEY}}
    run = run_of(failed("a", reason=f"key {KEY}"), variant=variant)
    for text in (as_page(run, {}), as_markdown(run)):
        assert KEY not in text
        assert "[masked" in text
