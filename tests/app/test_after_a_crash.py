"""After a crash a session opens where it stood: questions are asked again, and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentcli.infra.sandbox.processes.process_tree import processes_below
from tests.app.running import Place, call, wait_until
from tests.app.terminal import Open

NO_TRIES = {"AGENTCLI_PERMISSIONS_TRY": "false"}
COUNT = "echo x >>count"  # it tells how often it ran


def bash(command: str) -> dict[str, Any]:
    return call("bash", command=command)


@pytest.fixture
def crashed(place: Place) -> Place:
    """A session that was killed while a question waited: one call had ended, one had not begun."""
    place.environment |= NO_TRIES
    calls = [bash("cat a.txt"), bash(COUNT), bash("echo y >>last")]
    (place.folder / "a.txt").write_text("held\n")
    script = place.script({"tool_calls": calls})
    with place.talk(script) as running:
        running.say("go")
        running.wait_for_type("system", "approval_requested")
        running.signal(signal.SIGKILL)
        running.left()
    return place


def session_of(place: Place) -> str:
    return str(json.loads(place.run("sessions", "list", "--json").out)[0]["id"])


@pytest.mark.slow
def test_a_question_that_waited_is_asked_again_and_the_turn_continues(crashed: Place) -> None:
    script = crashed.script({"text": "the end"})
    with crashed.talk(script, "-c") as running:
        asked = running.wait_for_type("system", "approval_requested")
        assert asked["tool_input"] == {"command": COUNT}
        assert not (crashed.folder / "count").exists()
        running.control("approve", id=asked["id"])
        asked = running.wait_for(lambda line: line.get("tool_input") == {"command": "echo y >>last"})
        running.control("deny", id=asked["id"], comment="not this")
        assert running.wait_for(lambda line: line["type"] == "result")["result"] == "the end"
    assert (crashed.folder / "count").read_text() == "x\n"
    assert not (crashed.folder / "last").exists()


@pytest.mark.slow
def test_without_anyone_to_ask_the_result_says_that_the_call_did_not_run(crashed: Place) -> None:
    ran = crashed.run("-c", "-p", "and now?", "-m", crashed.script({"text": "{{last_result}}"}))
    assert ran.out == "Not run: agentcli exited while another call was waiting for approval.\n"
    shown = json.loads(crashed.run("sessions", "show", session_of(crashed), "--json").out)
    told = [b["content"] for m in shown["messages"] for b in m["content"] if b["type"] == "tool_result"]
    assert [text.split(":")[0] for text in told] == ["held", "Not run", "Not run"]
    assert "agentcli exited before the user approved" in told[1]
    assert not (crashed.folder / "count").exists()


def test_interrupted_calls_are_never_run_again(place: Place) -> None:
    script = place.script({"tool_calls": [bash("cat a.txt"), bash(f"{COUNT}; sleep 30")]})
    (place.folder / "a.txt").write_text("held\n")
    flags = ("--permission-mode", "bypassPermissions")
    place.kill_once((place.folder / "count").exists, "-p", "go", "-m", script, *flags)
    told = place.run("-p", "and now?", "-c", "-m", place.script({"text": "{{last_result}}"}), *flags).out
    assert "may have partially run" in told
    assert (place.folder / "count").read_text() == "x\n"
    shown = place.run("sessions", "show", session_of(place)).out
    assert "✓ bash" in shown  # the call before it had its result


def test_a_question_about_a_dry_run_is_not_asked_again(place: Place) -> None:
    script = place.script({"tool_calls": [bash(COUNT)]})
    with place.talk(script) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        if asked.get("kind") != "keep":
            pytest.skip("commands cannot be tried here")
        running.signal(signal.SIGKILL)
        running.left()
    with place.talk(place.script({"text": "{{last_result}}"}), "-c") as running:
        running.say("and now?")
        assert "Changes discarded: " in running.wait_for(lambda line: line["type"] == "result")["result"]
    assert not (place.folder / "count").exists()


@pytest.mark.slow
def test_the_terminal_asks_again_too(open_terminal: Open, tmp_path: Path) -> None:
    first = open_terminal([{"tool_calls": [bash(COUNT)]}], "go", **NO_TRIES)
    first.asked()
    first.kill(signal.SIGKILL)
    second = open_terminal([{"text": "the end"}], "-c", **NO_TRIES)
    assert f"✗ Run {COUNT} · not run: it waited for your answer\n" in second.asked()
    second.type("y")
    second.see("the end")
    assert (tmp_path / "project/count").read_text() == "x\n"


@pytest.mark.slow
def test_a_dry_run_that_a_kill_cut_off_is_reported_as_discarded(open_terminal: Open, tmp_path: Path) -> None:
    first = open_terminal([{"tool_calls": [bash("./count.sh")]}], "go")
    (tmp_path / "project/count.sh").write_text("#!/bin/sh\necho x > count\n")
    (tmp_path / "project/count.sh").chmod(0o755)
    assert "Apply these changes" in first.asked()
    first.kill(signal.SIGKILL)
    second = open_terminal([{"text": "the end"}], "-c")
    second.see("✗ Run ./count.sh · dry run discarded: nothing was applied\n")
    assert not (tmp_path / "project/count").exists()


@pytest.mark.slow
def test_the_terminal_says_that_a_turn_is_not_finished_also_with_a_queue(open_terminal: Open) -> None:
    first = open_terminal([{"text": "late", "delay_ms": 30_000}], "go")
    first.see("Esc to interrupt")
    first.type("next\t")
    first.see("queued: next")
    first.settle(0.5)
    first.kill(signal.SIGKILL)
    second = open_terminal([{"text": "the end"}], "-c")
    second.see(r"The last turn is not finished\. Your next message continues it")
    second.rest()
    second.type("\r")
    second.see("the end")


def test_a_second_program_may_take_a_session_over(place: Place) -> None:
    script = place.script({"tool_calls": [bash(f"{COUNT}; sleep 30")]})
    flags = ("--permission-mode", "bypassPermissions")
    with place.talk(script, *flags) as running:
        running.say("go")
        while not (place.folder / "count").exists():
            pass
        refused = place.run("-c", "-p", "and now?", "-m", place.script({"text": "x"}))
        assert (refused.code, "--take-over" in refused.err) == (1, True)
        taken = place.run("-c", "--take-over", "-p", "and now?", "-m", place.script({"text": "{{last_result}}"}))
        assert (taken.code, "interrupted by the user" in taken.out) == (0, True)
        left = running.left()
    assert left.code == 130
    assert any("Another agentcli took over" in str(line) for line in left.lines)
    assert left.result["subtype"] == "interrupted"
    assert (place.folder / "count").read_text() == "x\n"
    assert not list((place.home / "state/locks").glob("*.wanted"))


@pytest.mark.full
@pytest.mark.slow
def test_a_program_that_does_not_answer_is_not_waited_for_without_end(place: Place) -> None:
    with place.talk(place.script({"text": "x"}, {"text": "y"})) as running:
        running.say("go")
        running.wait_for(lambda line: line["type"] == "result")
        running.signal(signal.SIGSTOP)
        ran = place.run("-c", "--take-over", "-p", "and now?", "-m", place.script({"text": "x"}))
        assert (ran.code, "does not give it up" in ran.err) == (1, True)
        running.signal(signal.SIGCONT)
        running.say("still here")
        assert running.wait_for(lambda line: line.get("result") == "y")


@pytest.mark.slow
def test_the_terminal_leaves_where_it_is_taken_over(open_terminal: Open) -> None:
    first = open_terminal([{"text": "One answer."}], "go")
    first.see("One answer.")
    second = open_terminal([{"text": "Two answers."}], "-c", "--take-over", "more")
    second.see("Two answers.")
    first.see("Another agentcli took over")
    assert first.exit_code() == 0


def strays(place: Place) -> list[str]:
    return sorted(path.name for path in place.folder.iterdir() if path.name.startswith("."))


@pytest.mark.slow
@pytest.mark.parametrize("with_keeper", [False, True])
def test_a_killed_command_leaves_no_empty_folders(place: Place, with_keeper: bool) -> None:
    script = place.script({"tool_calls": [bash("echo 1 > a.txt; sleep 30")]})
    flags = ("-p", "go", "--permission-mode", "auto", "--output-format", "stream-json")
    with place.start(*flags, "-m", script) as running:
        wait_until(lambda: ".vscode" in strays(place), "the folders")
        wait_until((place.folder / "a.txt").exists, "the command")
        below = [each.pid for each in processes_below(running.pid)]
        for pid in (running.pid, *(below if with_keeper else ())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.left()
    if with_keeper:
        place.run("-c", "-p", "x", "-m", place.script({"text": "."}))
    wait_until(lambda: strays(place) == [], "the empty folders to go")
