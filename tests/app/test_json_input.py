"""What a stream takes: wrong lines are answered, controls acknowledged, the client's own tools called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli.frontends.json_input import CONTROLS
from tests.app.running import Place, Running, call

pytestmark = pytest.mark.slow  # each test starts the program

ROOT = Path(__file__).parents[2]
BOTH = ("--output-format", "stream-json", "--input-format", "stream-json")
ASKS = ({"tool_calls": [call("bash", command="touch made")]}, {"text": "So: {{last_result}}"})
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 100}
LOOK_UP = {
    "name": "look_up",
    "description": "Look a customer up.",
    "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
PNG: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def talk(place: Place, *replies: Any, flags: tuple[str, ...] = ()) -> Running:
    return place.start("-m", place.script(*replies), *BOTH, *flags, stdin=True)


def user(content: Any, **fields: Any) -> str:
    return json.dumps({"type": "user", "message": {"role": "user", "content": content, **fields}})


def control(subtype: Any, **fields: Any) -> str:
    return json.dumps({"type": "control", "subtype": subtype, **fields})


def image(**source: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "see"}, {"type": "image", "source": source}]


DEEP = 100_000
NESTED = json.loads("[" * 500 + "]" * 500)
WRONG: list[tuple[str | bytes, str]] = [
    ("[" * DEEP, "nested"),
    ("[" * DEEP + "]" * DEEP, "nested"),
    ('{"type":' * DEEP, "nested"),
    (user("x").replace('"x"', "[" * DEEP + "]" * DEEP), "nested"),
    (control("client_result", id="x", content="", structured=NESTED), "nested deeper than 100"),
    (b'{"type":"user","message":{"content":"\xff\xfe"}}', "UTF-8"),
    (b"\x00\x01\x02", "not JSON"),
    ("{", "not JSON"),
    ("7", "one JSON object per line"),
    ("null", "one JSON object per line"),
    ("[]", "one JSON object per line"),
    ('"hello"', "one JSON object per line"),
    ("true", "one JSON object per line"),
    ("{}", '"type":"user" or "type":"control"'),
    ('{"type":7}', '"type":"user" or "type":"control"'),
    ('{"type":"user"}{"type":"user"}', "not JSON"),
    (user(""), "the message is empty"),
    (user(" \n\t"), "the message is empty"),
    (user([]), "the message is empty"),
    (user([{"type": "text", "text": ""}]), "the message is empty"),
    (user([1]), "got `int`"),
    (user([{"type": "text"}]), "required field `text`"),
    (user([{"type": "tool_result", "tool_use_id": "x"}]), "tool_result"),
    (user(None), "got `null`"),
    (user(5), "got `int`"),
    (user({"type": "text", "text": "x"}), "Expected `str | array`, got `object` - at `$.message.content`"),
    (user("x", role="assistant"), "`$.message.role`"),
    ('{"type":"user","message":"hello"}', "`$.message`"),
    (user(image(type="base64", media_type="image/png", data="")), "the image has no data"),
    (user(image(type="base64", media_type="image/png")), "required field `data`"),
    (user(image(type="base64", media_type="image/png", data=None)), "got `null`"),
    (user(image(type="base64", media_type="image/png", data="not base64!")), "not base64"),
    (user(image(type="base64", media_type="text/html", data="aGk=")), "image/png"),
    (user(image(type="url", url="https://example.com/a.png")), "source"),
    (user([{"type": "image"}]), "required field `source`"),
    (user([{"type": "document", "source": {**PNG["source"], "media_type": "application/pdf", "data": ""}}]), "no data"),
    (user([{"type": "document", "source": PNG["source"]}]), "the document's media_type must be"),
    (control("steer", message={"role": "user", "content": " "}), "the message is empty"),
    (control(None), "one of interrupt, steer,"),
    (control("dance"), "one of interrupt, steer,"),
    (control(["interrupt"]), "one of interrupt, steer,"),
    ('{"type":"control"}', "one of interrupt, steer,"),
    (control("set_model"), "required field `model`"),
    (control("set_model", model=7), "Expected `str`, got `int` - at `$.model`"),
    (control("set_permission_mode", mode="loose"), "bypassPermissions"),
    (control("set_permission_mode", mode=None), "`$.mode`"),
    (control("command", text=["/usage"]), "`$.text`"),
    (control("approve"), "required field `id`"),
    (control("approve", id=7), "Expected `str`, got `int` - at `$.id`"),
    (control("approve", id="nothing"), "No question 'nothing' is waiting for an answer; none is waiting."),
    (control("deny", id="nothing"), "No question 'nothing' is waiting for an answer"),
    (control("deny", id="nothing", comment=5), "`$.comment`"),
    (control("client_tools", tools=LOOK_UP), "`$.tools`"),
    (control("client_tools", tools=[{"name": "x"}]), "required field `description`"),
    (control("client_tools", tools=[{**LOOK_UP, "name": "look up"}]), "letters, digits"),
    (control("client_tools", tools=[{**LOOK_UP, "input_schema": {}}]), '"type": "object"'),
    (control("client_tools", tools=[{**LOOK_UP, "name": "bash"}]), "two tools named 'bash'"),
    (control("client_result", id="nothing", content="x"), "No call 'nothing' is waiting for an answer"),
    (control("client_result", id="nothing"), "required field `content`"),
    (control("client_result", id="nothing", content=7), "`$.content`"),
    (control("interrupt", id=[1]), "id must be a string or an integer"),
    (control("interrupt", id=True), "id must be a string or an integer"),
]  # fmt: skip


def test_wrong_lines_are_answered_one_by_one_with_what_was_expected(place: Place) -> None:
    with talk(place, {"text": "Still here."}) as running:
        for line, _ in WRONG:
            running.send_bytes(line if isinstance(line, bytes) else line.encode())
        running.say("there?")
        ran = running.ended()
    told = [(answer["line"], answer["error"]) for answer in ran.of("system", "input_error")]
    assert len(told) == len(WRONG)
    for line, expected in WRONG:
        beginning = (line if isinstance(line, bytes) else line.encode())[:200].decode(errors="replace")
        assert [error for about, error in told if about == beginning and expected in error], (beginning, told)
    assert all(len(error) < 1_000 for _, error in told)
    assert (ran.code, ran.result["result"], ran.err) == (0, "Still here.", "")


def test_a_very_long_line_is_read_and_one_without_end_refused(place: Place) -> None:
    with talk(place, {"text": "Read."}, {"text": "Still here."}) as running:
        running.say("word " * 400_000)
        running.wait_for_type("result")
        running.send_bytes(b'"' + b"x" * (70 * 1024 * 1024))
        running.say("there?")
        ran = running.ended()
    (answer,) = ran.of("system", "input_error")
    assert "longer than 64 MB" in answer["error"]
    assert [line["result"] for line in ran.of("result")] == ["Read.", "Still here."]


def test_half_a_character_from_a_javascript_client_is_replaced(place: Place) -> None:
    with talk(place, {"text": "Read."}) as running:
        running.send_bytes(b'{"type":"user","message":{"role":"user","content":"cut \\ud83d"}}')
        ran = running.ended()
    assert ran.result["result"] == "Read."


def test_empty_text_beside_an_image_is_left_out(place: Place) -> None:
    with talk(place, {"text": "A dot."}) as running:
        running.send(user([{"type": "text", "text": ""}, PNG]))
        ran = running.ended()
    assert ran.result["result"] == "A dot."


# Acknowledgements.


def test_a_control_with_an_id_is_acknowledged_and_one_without_is_not(place: Place) -> None:
    model = place.script({"text": "x"})
    with talk(place, SLOW, flags=("--include-partial-messages",)) as running:
        running.control("set_permission_mode", mode="plan", id="a")
        running.control("set_model", model=model, id=2)
        running.control("set_permission_mode", mode="loose", id="c")
        running.control("set_model", model="nonsense", id="d")
        running.control("dance", id="e")
        running.control("interrupt", id="f")
        running.control("interrupt")
        running.control("interrupt", id=None)
        ran = running.ended()
    answers = {line["id"]: (line["ok"], "error" in line) for line in ran.of("system", "control")}
    fine, wrong = (True, False), (False, True)
    assert answers == {"a": fine, 2: fine, "c": wrong, "d": wrong, "e": wrong, "f": fine}
    assert len(ran.of("system", "input_error")) == 3


def test_an_answer_carries_the_id_of_its_question_and_counts_once(place: Place) -> None:
    with talk(place, *ASKS) as running:
        running.say("go")
        id = running.wait_for_type("system", "approval_requested")["id"]
        running.control("approve", id=id, scope="for ever")
        running.control("approve", id="other")
        running.control("approve", id=id)
        running.control("deny", id=id)
        running.control("approve", id=id)
        ran = running.ended()
    assert [(line["id"], line["ok"]) for line in ran.of("system", "control")] == [
        (id, False), ("other", False), (id, True), (id, False), (id, False),
    ]  # fmt: skip
    unknown = ran.of("system", "control")[1]["error"]
    assert unknown == f"No question 'other' is waiting for an answer; waiting: {id}."
    assert (place.folder / "made").exists()
    assert ran.result["permission_denials"] == []


# The client's own tools.


def test_a_client_runs_its_own_tools(place: Place) -> None:
    replies = (
        {"tool_calls": [call("look_up", name="Ann"), call("look_up", name="Bob"), call("think", thought="Hm.")]},
        {"text": "So: {{last_result}}"},
    )
    with talk(place, *replies, flags=("--permission-mode", "plan")) as running:
        running.control("client_tools", tools=[LOOK_UP], id="t")
        running.say("who is Ann?")
        ann = running.wait_for(lambda line: line.get("tool_input") == {"name": "Ann"})
        bob = running.wait_for(lambda line: line.get("tool_input") == {"name": "Bob"})
        assert (ann["subtype"], ann["tool_name"]) == ("client_tool_requested", "look_up")
        running.control("client_result", id=bob["id"], content=[{"type": "text", "text": "unknown"}], is_error=True)
        running.control("client_result", id=ann["id"], content="customer 7", structured={"number": 7})
        running.wait_for_type("result")
        running.control("client_result", id=ann["id"], content="again")
        ran = running.ended()
    (end,) = ran.of("result")
    results = {line["content"][0]["tool_use_id"]: line["content"][0] for line in (m["message"] for m in ran.of("user"))}
    assert results[ann["id"]]["content"] == "customer 7"
    assert results[bob["id"]]["is_error"]
    assert "unknown" in str(results[bob["id"]]["content"])
    assert [line["ok"] for line in ran.of("system", "control")] == [True, True, True, False]
    assert end["subtype"] == "success"


def test_tools_come_with_the_next_prompt_and_more_may_follow(place: Place) -> None:
    use = {"tool_calls": [call("look_up", name="Ann")]}
    other = {**LOOK_UP, "name": "look_down"}
    with talk(place, use, {"text": "{{last_result}}"}, use, {"text": "{{last_result}}"}) as running:
        running.say("one")
        running.wait_for_type("result")
        for tools in ([LOOK_UP], [LOOK_UP, other], []):
            running.control("client_tools", tools=tools, id=len(tools))
        running.say("two")
        asked = running.wait_for_type("system", "client_tool_requested")
        running.control("client_result", id=asked["id"], content="here")
        ran = running.ended()
    before, after = ran.of("result")
    assert "No tool 'look_up'" in before["result"]
    assert after["result"] == "here"
    assert all(line["ok"] for line in ran.of("system", "control"))


def test_when_input_ends_a_waiting_client_call_ends_with_an_error_and_so_does_a_later_one(place: Place) -> None:
    use = {"tool_calls": [call("look_up", name="Ann")]}
    with talk(place, use, use, {"text": "So: {{last_result}}"}) as running:
        running.control("client_tools", tools=[LOOK_UP])
        running.say("go")
        running.wait_for_type("system", "client_tool_requested")
        ran = running.ended()
    assert ran.result["result"].startswith("So: dependency_error: The client that runs this tool has disconnected.")
    assert len(ran.of("system", "client_tool_requested")) == 1
    assert (ran.code, ran.err) == (0, "")


def test_an_interrupt_ends_a_waiting_client_call(place: Place) -> None:
    use = {"tool_calls": [call("look_up", name="Ann")]}
    with talk(place, use, {"text": "Next."}) as running:
        running.control("client_tools", tools=[LOOK_UP])
        running.say("go")
        asked = running.wait_for_type("system", "client_tool_requested")
        running.control("interrupt")
        running.wait_for_type("result")
        running.control("client_result", id=asked["id"], content="too late")
        running.say("next")
        ran = running.ended()
    assert [line["subtype"] for line in ran.of("result")] == ["interrupted", "success"]
    assert len(ran.of("system", "input_error")) == 1


# The page about it.


def test_the_client_of_the_page_works(place: Place) -> None:
    page = (ROOT / "docs/stream-json.md").read_text("utf-8")
    (client,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in client.splitlines() if line.strip()]) <= 30
    model = place.script(
        {"tool_calls": [call("price", article="tea")]},
        {"tool_calls": [call("bash", command="touch made")]},
        {"tool_calls": [call("file_write", path="tea.txt", content="3.20\n")]},
        {"text": "Done."},
    )
    programs = f"{Path(sys.executable).parent}{os.pathsep}{place.environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", client],
        cwd=place.folder,
        env={**place.environment, "PATH": programs, "AGENTCLI_MODEL": model},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "Done.\n", "")
    assert (place.folder / "tea.txt").read_text() == "3.20\n"
    assert not (place.folder / "made").exists()


def test_the_page_names_every_control_with_its_fields() -> None:
    page = (ROOT / "docs/stream-json.md").read_text("utf-8")
    section = page[page.index("| subtype |") : page.index("Lines are taken")]
    documented = {
        name: re.findall(r"`([a-z_]+\??)`", fields)
        for name, fields in re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.MULTILINE)
    }
    assert documented == {
        name: [f"{field.encode_name}{'' if field.required else '?'}" for field in msgspec.structs.fields(form)]
        for name, form in CONTROLS.items()
    }


# A stream that holds nothing to answer.


@pytest.mark.parametrize("lines", [["nonsense"], ["{}", user("")], [control("no-such-thing")]])
def test_a_stream_of_refused_lines_ends_with_a_result(place: Place, lines: list[str]) -> None:
    ran = place.run("-m", place.script({"text": "x"}), *BOTH, stdin="\n".join(lines) + "\n")
    assert ran.code == 1
    assert len(ran.of("system", "input_error")) == len(lines)
    assert len(ran.of("result")) == 1
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_during_execution", True)
    assert "Every line of the input was rejected" in ran.result["result"]


@pytest.mark.parametrize("stdin", ["", "\n\n", control("interrupt") + "\n"])
def test_a_stream_without_a_prompt_and_without_a_mistake_has_no_result(place: Place, stdin: str) -> None:
    ran = place.run("-m", place.script({"text": "x"}), *BOTH, stdin=stdin)
    assert (ran.code, ran.of("result")) == (0, [])


@pytest.mark.parametrize("lines", [[user("go"), "nonsense"], ["nonsense", user("go")]])
def test_one_refused_line_changes_no_result(place: Place, lines: list[str]) -> None:
    ran = place.run("-m", place.script({"text": "x"}), *BOTH, stdin="\n".join(lines) + "\n")
    assert (ran.code, [result["result"] for result in ran.of("result")]) == (0, ["x"])


def test_a_byte_order_mark_ahead_of_the_stream_is_passed_over(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "x"}), *BOTH, stdin=b"\xef\xbb\xbf" + user("go").encode() + b"\n")
    assert (ran.code, ran.result["result"], ran.of("system", "input_error")) == (0, "x", [])


def test_a_prompt_that_is_read_from_stdin_is_the_stream_s(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "x"}), "-p", "-", *BOTH, stdin=user("go") + "\n")
    assert (ran.code, ran.result["result"]) == (0, "x")
