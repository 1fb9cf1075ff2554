"""Subagents work in conversations of their own; what they ask, cost and change is the parent's."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Commanded, Place, Ran, call, wait_until
from tests.app.terminal import PATIENCE_S, Open
from tests.app.test_undo import undo
from tests.conformance.confining import confinement_for
from tests.conformance.replies import Call, Said, chat_reply
from tests.conformance.servers import Received, Reply, chat_server

DONE = {"text": "done"}
BYPASS = ("--permission-mode", "bypassPermissions")


def agent(task: str = "look", **more: Any) -> dict[str, Any]:
    return call("create_subagent", task=task, **more)


def lets(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(calls)}


def stream(place: Place, *replies: dict[str, Any], flags: tuple[str, ...] = (), code: int = 0) -> Ran:
    ran = place.run("-p", "go", "-m", place.script(*replies, DONE), "--output-format", "stream-json", *flags)
    assert ran.code == code, (ran.out, ran.err)
    return ran


def answers(ran: Ran) -> list[str]:
    """The results that the parent's model gets."""
    own = [line for line in ran.of("user") if line["parent_tool_use_id"] is None]
    return [line["message"]["content"][0]["content"] for line in own]


def messages(place: Place, ran: Ran) -> str:
    shown = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)
    return json.dumps(shown["messages"])


def test_subagents_side_by_side_get_the_replies_that_are_meant_for_them(place: Place) -> None:
    of_red = ({"text": "I am red.", "when": "count the red"},)
    of_blue = (
        lets(call("bash", command="true")) | {"when": "count the blue"},
        {"text": "I am blue.", "when": "the blue"},
    )
    ran = place.run(
        "-p", "go", "-m", place.script(lets(agent("count the red"), agent("count the blue")), *of_blue, *of_red, DONE),
        "--output-format", "stream-json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    told = [
        block["content"]
        for line in ran.of("user")
        if line["parent_tool_use_id"] is None
        for block in line["message"]["content"]
    ]
    assert [text.split(".")[0] for text in told] == ["I am red", "I am blue"]


def test_the_parent_gets_the_answer_and_nothing_else(place: Place) -> None:
    (place.folder / "a.txt").write_text("treasure\n")
    child = place.script(lets(call("file_read", path="a.txt")), {"text": "It is in line 1."})
    ran = stream(place, lets(agent("Where is the treasure?", agent="explore", model=child)))
    assert answers(ran)[0].startswith("It is in line 1.\n\n[explore-1: 2 rounds · ")
    assert "treasure\\n" not in messages(place, ran)
    made_by = ran.of("assistant")[0]["message"]["content"][0]["id"]
    inner = [line for line in ran.lines if line.get("parent_tool_use_id") == made_by]
    assert [line["type"] for line in inner] == ["system", "assistant", "user", "assistant", "system"]
    assert inner[0]["agent"] == "explore"
    assert inner[-1]["end"] == "done"
    assert place.run("sessions", "list").out.count("go") == 1  # theirs are kept apart


def test_what_they_use_is_the_parents(place: Place) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 10}
    child = place.script({"text": "a", "usage": usage}, {"text": "b", "usage": usage})
    ran = stream(place, lets(agent(model=child), agent(model=child)) | {"usage": usage}, flags=BYPASS)
    counted = ran.result["usage"]["input_tokens"]
    assert counted >= 3_000
    assert ran.result["model_usage"][child]["input_tokens"] == 2_000
    again = place.run("-c", "-p", "more", "-m", place.script(DONE), "--output-format", "json")
    assert json.loads(again.out)["model_usage"][child]["input_tokens"] == 2_000  # as the log tells


@pytest.mark.slow
def test_twenty_tasks_run_four_at_a_time(place: Place) -> None:
    child = place.script(*({"text": "ok", "delay_ms": 300} for _ in range(20)))
    ran = stream(place, lets(*(agent(f"task {n}", model=child) for n in range(20))))
    assert len(answers(ran)) == 20
    assert all(text.startswith("ok") for text in answers(ran))
    running = most = 0
    for line in ran.of("system"):
        running += {"subagent_started": 1, "subagent_ended": -1}.get(line["subtype"], 0)
        most = max(most, running)
    assert most == 4


def test_they_make_no_others_and_ask_nobody(place: Place) -> None:
    child = place.script(lets(agent("more")), lets(call("ask_user", question="?")), {"text": "alone"})
    ran = stream(place, lets(agent(model=child)))
    inner = [line["message"]["content"][0]["content"] for line in ran.of("user") if line["parent_tool_use_id"]]
    assert all("No tool" in text for text in inner)
    assert answers(ran)[0].startswith("alone")


@pytest.mark.slow
def test_an_agent_has_only_its_tools(place: Place) -> None:
    write = lets(call("file_write", path="made", content="x"))
    child = place.script(write, {"text": "tried"})
    stream(place, lets(agent(agent="explore", model=child)), flags=BYPASS)
    assert not (place.folder / "made").exists()
    stream(place, lets(agent(model=child, tools=["Read"])), flags=BYPASS)
    assert not (place.folder / "made").exists()
    stream(place, lets(agent(model=child)), flags=("--permission-mode", "plan"))
    assert not (place.folder / "made").exists()
    wrong = stream(place, lets(agent(agent="explore", tools=["bash"], model=child)), lets(agent(agent="explor")))
    assert "explore has no tool 'bash'" in answers(wrong)[0]
    assert "Unknown agent 'explor'. Choose one of" in answers(wrong)[1]
    stream(place, lets(agent(model=child)), flags=BYPASS)
    assert (place.folder / "made").read_text() == "x"


@pytest.mark.slow
def test_rules_hold_for_them_and_may_name_them(place: Place) -> None:
    child = place.script(lets(call("file_write", path="made", content="x")), {"text": "tried"})
    ran = stream(place, lets(agent(model=child)), flags=(*BYPASS, "--deny", "Write"))
    assert not (place.folder / "made").exists()
    assert [one["tool_name"] for one in ran.result["permission_denials"]] == ["file_write"]
    refused = stream(place, lets(agent(model=child)), flags=(*BYPASS, "--deny", "Agent(general)"))
    assert "denies it" in answers(refused)[0]
    allowed = stream(place, lets(agent(agent="explore", model=child)), flags=(*BYPASS, "--deny", "Agent(general)"))
    assert answers(allowed)[0].startswith("tried")


def test_a_revoked_host_is_closed_to_them_too(place: Place) -> None:
    confinement_for(f"bubblewrap, {'root' if os.getuid() == 0 else 'user'}")
    looks = lets(call("bash", command="env | grep -q ^https_proxy && echo open || echo closed; touch x"))
    child = place.script(looks, lets(call("bash", command="rm x")), looks, {"text": "{{last_result}}"})
    model = place.script(lets(agent(model=child)), {"text": "{{last_result}}"})
    with place.talk(model, "--permission-mode", "auto") as running:
        running.control("command", text="/permissions ask bash(rm *)")
        running.control("command", text="/sandbox host example.org")
        running.say("go")
        question = running.wait_for_type("system", "approval_requested")
        running.control("command", text="/sandbox forget example.org")
        running.control("approve", id=question["id"])
        assert running.wait_for_type("result")["result"].startswith("closed")
        said = [json.dumps(line["message"]) for line in running.ended().of("user")]
    assert "open" in said[0]


def test_a_question_of_theirs_is_answered_through_the_parent(place: Place) -> None:
    first, second = (
        place.script(lets(call("file_write", path=name, content="x")), {"text": "written"}) for name in ("made", "not")
    )
    script = place.script(lets(agent(model=first), agent(model=second)), DONE)
    with place.talk(script) as running:
        running.say("go")
        for number in (1, 2):
            asked = running.wait_for(
                lambda line, n=number: line.get("subtype") == "approval_requested" and f"general-{n}" in line["id"]
            )
            assert asked["agent_id"] == f"general-{number}"
            running.control("approve" if number == 1 else "deny", id=asked["id"])
        running.wait_for(lambda line: line["type"] == "result")
    assert (place.folder / "made").read_text() == "x"
    assert not (place.folder / "not").exists()


@pytest.mark.parametrize(
    ("more", "told"), [({"max_turns": 1}, "its limit (max_turns)"), ({}, "subagent failed: ")], ids=["limit", "failure"]
)
def test_one_that_does_not_finish_gives_what_it_has(place: Place, more: dict[str, Any], told: str) -> None:
    child = place.script(
        {"text": "So far: one fault.", **lets(call("think", thought="x"))}, {"error": {"kind": "auth"}}
    )
    ran = stream(place, lets(agent(model=child, **more)))
    assert told in answers(ran)[0]
    assert "So far: one fault." in answers(ran)[0]


def test_a_budget_of_its_own_ends_it(place: Place) -> None:
    prices = {"AGENTCLI_RETRY_MAX": "0"}
    dear = place.script(
        {"text": "thinking", **lets(call("think", thought="x")), "usage": {"input_tokens": 10, "output_tokens": 10}},
        {"text": "never"},
    )
    toml = place.folder.parent / "prices.toml"
    provider, name = dear.split("/", 1)
    toml.write_text(f'[models.{provider}."{name}"]\nprices = {{ input = 1000, output = 100000 }}\n')
    place.environment |= prices
    ran = stream(place, lets(agent(model=dear, max_budget_usd=0.5)), flags=("--settings", str(toml)))
    assert "limit (max_budget)" in answers(ran)[0]


@pytest.mark.slow
def test_changes_of_subagents_are_undone_with_the_turn(place: Place) -> None:
    (place.folder / "a.txt").write_text("before\n")
    place.environment["AGENTCLI_PERMISSIONS_TRY"] = "false"
    child = place.script(
        lets(call("file_write", path="made", content="x")),
        lets(call("bash", command="echo after >a.txt")),
        {"text": "changed"},
    )
    stream(place, lets(agent(model=child)), flags=BYPASS)
    assert (place.folder / "a.txt").read_text() == "after\n"
    undo(place)
    assert (place.folder / "a.txt").read_text() == "before\n"
    assert not (place.folder / "made").exists()


@pytest.mark.slow
def test_an_interrupt_ends_the_whole_tree(place: Place) -> None:
    slow = lets(call("bash", command="touch begun; sleep 50"))
    first, second = (place.script(slow, {"text": "never"}) for _ in range(2))
    script = place.script(lets(agent(model=first), agent(model=second)), {"text": "never"})
    with place.talk(script, *BYPASS) as running:
        running.say("go")
        while not (place.folder / "begun").exists():
            time.sleep(0.01)
        running.control("interrupt")
        ended = running.wait_for(lambda line: line["type"] == "result")
        assert ended["subtype"] == "interrupted"
        left = [line for line in map(json.loads, running._out) if line.get("subtype") == "subagent_ended"]
        assert [line["end"] for line in left] == ["stopped", "stopped"]


@pytest.mark.slow
def test_one_is_stopped_and_the_others_continue(place: Place) -> None:
    slow = place.script(lets(call("bash", command="touch begun; sleep 50")), {"text": "never"})
    quick = place.script({"text": "quick", "delay_ms": 500})
    script = place.script(lets(agent(model=slow), agent(model=quick)), DONE)
    with place.talk(script, *BYPASS) as running:
        running.say("go")
        while not (place.folder / "begun").exists():
            time.sleep(0.01)
        commanded = Commanded(running)
        assert "general-1" in commanded.command("/agents")
        assert "Stopping general-1." in commanded.command("/agents stop general-1")
        running.wait_for(lambda line: line.get("result") == "done")
        ends = {line["agent_id"]: line["end"] for line in map(json.loads, running._out) if "end" in line}
        assert ends == {"general-1": "stopped", "general-2": "done"}
        assert "sleep 50" in commanded.command("/agents show general-1")


def test_one_in_the_background_reports(place: Place) -> None:
    child = place.script({"text": "The report.", "delay_ms": 300})
    ran = stream(place, lets(agent(model=child, background=True)), {"text": "meanwhile"}, {"text": "heard"})
    assert "in the background" in answers(ran)[0]
    assert ran.result["result"].endswith("heard")
    assert "The report." in messages(place, ran)


@pytest.mark.slow
def test_one_continues_where_it_ended(place: Place) -> None:
    child = place.script({"text": "first"}, {"text": "second"})
    ran = stream(place, lets(agent(model=child)))
    session = next(line["agent_session_id"] for line in ran.of("system", "subagent_started"))
    ran = stream(place, lets(agent("and now", model=child, resume=session)), flags=("-c",))
    assert answers(ran)[0].startswith(("second", "first"))
    shown = place.run("-p", "/agents show " + session, "-c", "-m", place.script(DONE)).out
    assert "› look" in shown
    assert "› and now" in shown


def test_another_session_s_agents_are_not_its_own(place: Place) -> None:
    ran = stream(place, lets(agent(model=place.script({"text": "secret of one"}))))
    session = next(line["agent_session_id"] for line in ran.of("system", "subagent_started"))
    other = stream(place, lets(agent("tell", model=place.script({"text": "two"}), resume=session)))
    assert "not a subagent of this session" in answers(other)[0]


def test_one_that_is_stopped_takes_its_question_along(place: Place) -> None:
    child = place.script(lets(call("file_write", path="made", content="x")), {"text": "never"})
    script = place.script(lets(agent(model=child)), {"text": "never"})
    with place.talk(script) as running:
        running.say("go")
        running.wait_for(lambda line: line.get("subtype") == "approval_requested")
        running.control("command", text="/agents stop general-1")
        running.wait_for(lambda line: line.get("subtype") == "approval_settled")
        ended = running.wait_for(lambda line: line.get("subtype") == "subagent_ended")
        assert ended["end"] == "stopped"


def test_definitions_of_other_tools_are_used_as_they_are(place: Place) -> None:
    folder = place.folder / ".claude/agents"
    folder.mkdir(parents=True)
    (folder / "tester.md").write_text(
        "---\nname: tester\ndescription: Runs: the tests.\ntools: Read, Grep, Bash(git:*), mcp__x\nmodel: sonnet\n"
        "color: red\n---\nYou run tests.\n"
    )
    (folder / "empty.md").write_text("---\nname: empty\n---\n")
    child = place.script(lets(call("file_write", path="made", content="x")), {"text": "tested"})
    ran = stream(place, lets(agent(agent="tester", model=child)), flags=("--trust", *BYPASS))
    assert answers(ran)[0].startswith("tested")
    assert not (place.folder / "made").exists()
    assert "tester" in ran.lines[0]["slash_commands"]
    unknown = stream(place, lets(agent(agent="tester", model=child)))
    assert "Unknown agent 'tester'" in answers(unknown)[0]


def test_a_definition_denies_tools_limits_rounds_and_names_skills(place: Place) -> None:
    (place.home / "agents").mkdir(parents=True)
    keys = "name: careful\ndescription: Looks.\ndisallowedTools: Bash, Write\nmaxTurns: 1\nskills: [pdf]"
    (place.home / "agents/careful.md").write_text(f"---\n{keys}\n---\nYou look.\n")
    with chat_server([chat_reply(Said("Nothing there."))]) as server:
        place.environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
        ran = stream(place, lets(agent(agent="careful", model="openai/gpt-5-nano")))
    (request,) = server.requests
    names = {tool["function"]["name"] for tool in request.json["tools"]}
    assert "file_read" in names
    assert names.isdisjoint({"bash", "file_write"})
    assert "activate these skills with the tool `skill`: pdf." in json.dumps(request.json["messages"])
    endless = place.script(lets(call("file_list")), lets(call("file_list")), DONE)
    ran = stream(place, lets(agent(agent="careful", model=endless)))
    assert "reached its limit (max_turns)" in answers(ran)[0]


def test_descriptions_of_many_agents_and_skills_share_a_part_of_the_window(place: Place) -> None:
    for number in range(300):
        name, text = f"kind-{number}", "very long words " * 40
        file = place.home / f"agents/{name}.md"
        folder = place.home / f"skills/skill-{number}"
        for path, body in ((file, f"---\nname: {name}\n"), (folder / "SKILL.md", f"---\nname: skill-{number}\n")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{body}description: {text}\n---\nDo it.\n")
    with chat_server([chat_reply(Said("Hello."))]) as server:
        place.environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
        ran = place.run("-p", "hi", "-m", "openai/gpt-4.1-mini", "--settings", '{"skills": {"share": 0.005}}')
    assert ran.code == 0, ran.err
    system = request_text(server.requests[0])
    lists = system[system.index("# Agents") :]
    assert "kind-299" in lists
    assert "skill-299" in lists
    assert len(lists) < 1_047_576 * 0.005 * 3 + 500


def request_text(received: Received) -> str:
    return str(received.json["messages"][0]["content"])


@pytest.mark.slow
def test_the_prefix_tells_of_own_kinds_and_else_is_as_before(place: Place) -> None:
    folder = place.home / "agents"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text("---\nname: mine\ndescription: Does mine.\n---\nDo it.\n")
    said = place.run("-p", "/context", "-m", place.script(DONE))
    assert said.code == 0
    ran = stream(place, lets(agent(agent="mine", model=place.script({"text": "mine"}))))
    assert answers(ran)[0].startswith("mine")


def test_settings_switch_them_off(place: Place) -> None:
    assert "create_subagent" in stream(place).lines[0]["tools"]
    place.environment["AGENTCLI_AGENTS_ENABLED"] = "false"
    assert "create_subagent" not in stream(place).lines[0]["tools"]


def test_files_they_change_need_to_be_read_again(place: Place) -> None:
    file = Path(place.folder / "a.txt")
    file.write_text("one\n")
    child = place.script(
        lets(call("file_read", path="a.txt")),
        lets(call("file_edit", path="a.txt", old_string="one", new_string="two")),
        {"text": "edited"},
    )
    ran = stream(
        place,
        lets(call("file_read", path="a.txt")),
        lets(agent(model=child)),
        lets(call("file_write", path="a.txt", content="three\n")),
        flags=BYPASS,
    )
    assert "has changed since it was read" in answers(ran)[2]
    assert file.read_text() == "two\n"


@pytest.mark.slow
def test_what_they_said_goes_with_the_session(place: Place) -> None:
    child = place.script({"text": "the password is hunter2hunter2"})
    ran = stream(place, lets(agent(model=child)))
    session = ran.result["session_id"]
    own = next(line["agent_session_id"] for line in ran.of("system", "subagent_started"))
    shown = ("-p", f"/agents show {own}", "-c", "-m", place.script(DONE))
    assert "hunter2hunter2" in place.run(*shown).out
    told = json.loads(place.run("sessions", "redact", session, "hunter2hunter2", "--json").out)
    assert told["places"] >= 2
    assert "hunter2hunter2" not in place.run(*shown).out
    assert "[redacted]" in place.run(*shown).out
    assert place.run("sessions", "rm", session, "--yes").code == 0
    assert place.run("-p", f"/agents show {own}", "-m", place.script(DONE)).code == 1


def test_a_message_for_a_running_one_is_in_its_next_request_and_not_in_the_parent_s(place: Place) -> None:
    is_told = threading.Event()

    def look(received: Received) -> Reply:
        assert is_told.wait(PATIENCE_S)
        return chat_reply(Said(calls=(Call("c2", "file_list", {}),)))

    start = chat_reply(Said(calls=(Call("c1", "create_subagent", {"task": "look around"}),)))
    with chat_server([start, look, chat_reply("I looked."), chat_reply("done")]) as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1"}
        both = ("--output-format", "stream-json", "--input-format", "stream-json")
        with place.start("-p", *both, "-m", "openai/m", env=env, stdin=True) as running:
            running.say("go")
            wait_until(lambda: len(server.requests) == 2, "the agent asks its model")
            commanded = Commanded(running)
            assert "No subagent 'genral-1' is running" in commanded.command("/agents tell genral-1 x")
            assert "Only the terminal shows a subagent live" in commanded.command("/agents open general-1")
            assert "general-1 gets your message" in commanded.command("/agents tell general-1 look in b.py as well")
            is_told.set()
            assert running.wait_for_type("result")["result"] == "done"
            assert "general-1 has ended. To see what it did" in commanded.command("/agents tell general-1 more")
        first, _, steered, last = server.requests
    assert [message["role"] for message in steered.json["messages"][-2:]] == ["tool", "user"]
    assert steered.json["messages"][-1]["content"] == "look in b.py as well"
    assert "b.py" not in last.body.decode()
    assert last.json["tools"] == first.json["tools"]
    begins = first.body[: first.body.rindex(b"go") + 2]
    assert last.body.startswith(begins), "the parent's prompt prefix stays as it was"


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("is_background", [False, True])
def test_one_is_watched_while_it_works_and_esc_only_closes_the_view(
    open_terminal: Open, tmp_path: Path, is_background: bool, columns: int
) -> None:
    child = tmp_path / "child.jsonl"
    gate = tmp_path / "project/gate"
    os.mkfifo(gate)
    replies = [{"text": "First words.", **lets(call("bash", command="cat gate"))}, {"text": "Last words."}]
    child.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))
    made = agent("look around", model=f"scripted/{child}", background=is_background)
    script = [lets(made), {"text": "Meanwhile."}, {"text": "Heard."}]
    terminal = open_terminal(script, "go", *BYPASS, columns=columns)
    terminal.see("Run cat gate")
    if is_background:
        assert "↗ general-1: look around · in the back" in terminal.settle()
    terminal.type("/agents open ")
    terminal.see("open general-1")
    terminal.type("general-1\r")
    shown = terminal.see(r"▾ general-1: look around\n +› look around\n\n? +First words\.\n +• Run cat gate")
    assert "Esc to close · /agents tell general" in shown
    terminal.type("\x1b")
    terminal.settle()
    assert "▾" not in terminal.text()
    terminal.type("/agents open general-1\r/agents tell general-1 look twice\r")
    terminal.see("general-1 gets your message")
    gate.write_text("open")
    terminal.see(r"✓ general-1|general-1 done")
    terminal.rest()
    assert "▾" not in terminal.settle()
    terminal.type("/agents show general-1\r")
    terminal.see(r"› look twice\n\n(?s:.*)Last words")
