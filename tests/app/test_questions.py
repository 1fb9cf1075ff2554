"""The model asks the person, a plan is accepted or not, and a loop is noticed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, Allow, QuestionEvent
from tests.app.running import Place, Ran, Running, call
from tests.app.terminal import Open

DONE = {"text": "done"}
PLAN = {"text": "# Plan\n\n1. Write the file.\n"}
WRITE = {"tool_calls": [call("file_write", path="made", content="x")]}


def ask(question: str = "Which one?", **more: Any) -> dict[str, Any]:
    return {"tool_calls": [call("ask_user", question=question, **more)]}


@contextmanager
def streaming(place: Place, *replies: dict[str, Any], flags: tuple[str, ...] = ()) -> Iterator[Running]:
    with place.talk(place.script(*replies), *flags) as running:
        running.say("go")
        yield running


def results(place: Place, session: str) -> str:
    return place.run("sessions", "show", session, "--json").out


def test_a_question_is_answered_by_its_id(place: Place) -> None:
    with streaming(place, ask(options=["red", "blue"]), {"text": "{{last_result}} it is"}) as running:
        asked = running.wait_for(lambda line: line.get("subtype") == "question")
        assert (asked["question"], asked["options"]) == ("Which one?", ["red", "blue"])
        running.control("answer", id=asked["id"], text="green")
        assert running.wait_for(lambda line: line["type"] == "result")["result"] == "green it is"


def test_without_anyone_present_the_model_is_informed(place: Place) -> None:
    ran = place.run("-p", "go", "-m", place.script(ask(), {"text": "{{last_result}}"}))
    assert ran.out.startswith("No one can answer here")
    assert ran.code == 0


async def test_a_program_answers_with_a_text(place: Place) -> None:
    async def approve(request: QuestionEvent) -> Allow:
        return Allow()

    options = AgentOptions(answer=lambda question: "blue")
    script = place.script(ask(), {"text": "{{last_result}}"})
    async with Agent(script, cwd=place.folder, approve=approve, options=options) as agent:
        assert (await agent.run("go")).text == "blue"


def test_a_person_picks_an_answer_or_writes_one(open_terminal: Open) -> None:
    terminal = open_terminal([ask(options=["red", "blue"]), ask("And why?"), {"text": "So be it: {{last_result}}"}])
    terminal.see("Ask, or describe")
    terminal.type("go\r")
    terminal.see(r"\? Which one\?")
    terminal.see("❯ 1   red")
    terminal.settle(0.3)
    terminal.type("\x1b[B\r")
    terminal.see(r"Ask Which one\? · blue(.|\n)*\? And why\?")
    terminal.settle(0.3)
    terminal.type("because\r")
    terminal.see("So be it: because")


def test_a_question_is_answered_by_number_in_words_or_line_by_line(open_terminal: Open) -> None:
    both = [ask(options=["red", "blue"]), ask(options=["red", "blue"]), {"text": "It is {{last_result}}."}]
    terminal = open_terminal(both, "go")
    terminal.see("❯ 1   red")
    terminal.settle(0.3)
    terminal.type("2")
    terminal.see(r"Ask Which one\? · blue(.|\n)*❯ 1   red")
    terminal.settle(0.3)
    terminal.type("green")
    terminal.see("answer: green")
    terminal.type("\r")
    terminal.see("It is green.")
    lines = open_terminal(both, "--plain", "go")
    lines.see(r"1  red(.|\n)*own words:")
    lines.type("2\n")
    lines.see(r"· blue(.|\n)*own words:")
    lines.type("green\n")
    lines.see("It is green.")


def test_a_question_that_is_left_is_closed_and_the_turn_continues(open_terminal: Open) -> None:
    terminal = open_terminal([ask(options=["red", "blue"]), {"text": "Then not."}, ask(options=["red"]), DONE])
    terminal.see("Ask, or describe")
    terminal.type("go\r")
    terminal.see(r"\? Which one\?")
    terminal.settle(0.3)
    terminal.type("\x1b")
    terminal.see("Then not.")
    terminal.see("Ask, or describe")
    terminal.type("more\r")
    terminal.see(r"(?s)Then not.*Something else")
    terminal.type("\x03")
    terminal.see(r"(?s)Interrupted.*Ask, or describe")


def test_a_plan_that_is_accepted_is_carried_out(place: Place) -> None:
    with streaming(place, PLAN, WRITE, DONE, flags=("--permission-mode", "plan")) as running:
        asked = running.wait_for(lambda line: line.get("subtype") == "approval_requested")
        assert asked["kind"] == "plan"
        assert asked["preview"].startswith("# Plan")
        running.control("approve", id=asked["id"], mode="acceptEdits")
        ended = running.wait_for(lambda line: line["type"] == "result")
    assert ended["result"] == "done"
    assert (place.folder / "made").read_text() == "x"
    assert "approved your plan" in results(place, ended["session_id"])


def test_a_plan_may_be_changed_or_sent_back(place: Place) -> None:
    with streaming(place, PLAN, PLAN, DONE, flags=("--permission-mode", "plan")) as running:
        asked = running.wait_for(lambda line: line.get("subtype") == "approval_requested")
        running.control("deny", id=asked["id"], comment="Think of the tests.")
        again = running.wait_for(lambda line: line.get("subtype") == "approval_requested" and line["id"] != asked["id"])
        running.control("approve", id=again["id"], comment="# Plan\n\nOnly tests.")
        ended = running.wait_for(lambda line: line["type"] == "result")
    shown = results(place, ended["session_id"])
    assert "Think of the tests." in shown
    assert "Only tests." in shown


def test_a_question_gives_letters_in_disguise_as_the_terminal_shows_them(place: Place) -> None:
    command = "curl ex\u0430mple.com"
    with streaming(place, {"tool_calls": [call("bash", command=command)]}, ask(options=["a", "b"]), DONE) as running:
        asked = running.wait_for(lambda line: line.get("subtype") == "approval_requested")
        assert asked["preview"] == command
        assert asked["exposed"]["preview"] == r"curl ex\u0430mple.com"
        running.control("deny", id=asked["id"])
        assert "exposed" not in running.wait_for(lambda line: line.get("subtype") == "question")


def test_a_reply_without_a_plan_asks_nothing(place: Place) -> None:
    with streaming(place, {"text": "It is in line 3."}, flags=("--permission-mode", "plan")) as running:
        ended = running.wait_for(lambda line: line["type"] == "result" or line.get("kind") == "plan")
    assert ended["type"] == "result"


def test_a_person_accepts_a_plan_in_the_terminal(open_terminal: Open) -> None:
    terminal = open_terminal([PLAN, WRITE, DONE], "--permission-mode", "plan")
    terminal.see("Ask, or describe")
    terminal.type("go\r")
    terminal.see("❯ 1   Yes, ask before each edit\n  2   Yes, accept edits\n  n   No, keep planning")
    terminal.settle(0.3)
    terminal.type("\x1b[B\r")
    terminal.see("done")


def test_modes_passed_through_on_the_way_to_plan_mode_are_not_gone_back_to(open_terminal: Open) -> None:
    terminal = open_terminal([PLAN, WRITE, DONE])
    terminal.see("ask before edits · script.jsonl$")
    terminal.type("\x1b[Z")
    terminal.see("accept edits ·")
    terminal.type("\x1b[Z")
    terminal.see("plan ·")
    terminal.type("go\r")
    terminal.see("❯ 1   Yes, ask before each edit")
    terminal.settle(0.5)
    terminal.type("\r")
    terminal.see(r"✓ Plan accepted · ask before edits(.|\n)*Write this file\?")


def test_lines_of_a_plan_are_commented_in_one_message(open_terminal: Open) -> None:
    terminal = open_terminal([PLAN, PLAN], "--permission-mode", "plan", "go")
    terminal.see("Carry out this plan")
    terminal.settle(0.5)
    terminal.type("c")
    terminal.see("❯ 1  # Plan")
    terminal.settle(0.3)
    terminal.type("\x1b[B\x1b[B\r")
    terminal.see("❯ 3  1. Write the file.(.|\n)*comment:")
    terminal.type("use tabs\r")
    terminal.see("↳ use tabs")
    terminal.settle(0.3)
    terminal.type("s")
    terminal.see(r"“On line 3 of the plan:\n> 1. Write the file.\nuse tabs”(.|\n)*Carry out this plan")


def same(times: int, **more: Any) -> list[dict[str, Any]]:
    return [{"tool_calls": [call("bash", command="echo same", **more)]} for _ in range(times)]


def json_result(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_loop_is_nudged_once_and_then_ended(place: Place) -> None:
    ran = place.run("-p", "go", "-m", place.script(*same(9), DONE), "--output-format", "json", "--max-turns", "20")
    ended = json_result(ran)
    assert ran.code == 1
    assert (ended["subtype"], ended["terminal_reason"]) == ("error_during_execution", "loop")
    assert "echo same" in ended["result"]
    assert ended["num_turns"] == 5


@pytest.mark.slow
def test_a_nudge_that_helps_ends_nothing(place: Place) -> None:
    other = {"tool_calls": [call("bash", command="echo other")]}
    ran = place.run("-p", "go", "-m", place.script(*same(4), other, *same(4), DONE), "--output-format", "json")
    assert json_result(ran)["result"] == "done"


@pytest.mark.slow
def test_changing_results_are_not_a_loop(place: Place) -> None:
    place.environment["AGENTCLI_PERMISSIONS_TRY"] = "false"
    tick = [{"tool_calls": [call("bash", command="echo x >>n; wc -l <n")]} for _ in range(8)]
    mode = ("--permission-mode", "bypassPermissions")
    ran = place.run("-p", "go", "-m", place.script(*tick, DONE), "--output-format", "json", *mode)
    assert json_result(ran)["result"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_person_is_asked_about_a_loop(open_terminal: Open, *, goes_on: bool) -> None:
    terminal = open_terminal([*same(5), {"text": "At last."}])
    terminal.see("Ask, or describe")
    terminal.type("go\r")
    terminal.see("Continue?")
    time.sleep(0.3)  # nobody answers faster
    terminal.type("y" if goes_on else "n")
    terminal.see("At last." if goes_on else "Stopped")
