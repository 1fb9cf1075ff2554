"""Slash commands outside the terminal: `-p "/…"` in every output, and in a stream of JSON lines."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran, Running, call

pytestmark = pytest.mark.slow  # each test starts the program

USED = {"text": "Hello.", "usage": {"input_tokens": 5, "output_tokens": 2}}
USAGE = "5 tokens in (0 cached), 2 out"
SLOW = {"text": "one two three four", "chunk": 4, "delay_ms": 200}
JSON = ("--output-format", "json")
STREAM = ("--output-format", "stream-json")


def talk(place: Place, *replies: Any, flags: tuple[str, ...] = ()) -> Running:
    return place.talk(place.script(*replies), *flags)


def write_command(folder: Path, name: str, text: str) -> None:
    (folder / "commands").mkdir(parents=True, exist_ok=True)
    (folder / "commands" / f"{name}.md").write_text(text)


def prompts_of(place: Place, id: str) -> list[str]:
    """What the person said in a session, as the model read it."""
    return [content[0]["text"] for content in said_in(place, id)]


def said_in(place: Place, id: str) -> list[list[dict[str, Any]]]:
    shown = place.run("sessions", "show", id, "--json")
    bodies = [entry["body"] for entry in json.loads(shown.out)["entries"]]
    return [body["content"] for body in bodies if body["kind"] == "user" and not body.get("is_reminder")]


def of_commands(ran: Ran) -> list[tuple[str, bool]]:
    return [(line["command"], line["is_error"]) for line in ran.of("system", "command")]


# As the prompt of a one-shot run.


def test_a_command_prints_what_it_says_and_asks_no_model(place: Place) -> None:
    ran = place.run("-m", place.script(), "-p", "/usage")
    assert (ran.code, ran.out, ran.err) == (0, "No requests in this session yet.\n", "")


def test_a_command_looks_at_the_session_that_is_continued(place: Place) -> None:
    model = place.script(USED)
    place.run("-m", model, "-p", "hi")
    ran = place.run("-m", model, "-c", "-p", "/cost", *JSON)
    assert ran.code == 0
    assert USAGE in ran.result["result"]
    assert (ran.result["subtype"], ran.result["num_turns"], ran.result["usage"]["output_tokens"]) == ("success", 0, 0)


def test_a_question_beside_the_work_has_its_price_in_the_result(place: Place) -> None:
    ran = place.run("-m", place.script(USED), "-p", "/btw who are you?", *JSON)
    assert (ran.result["result"], ran.result["num_turns"]) == ("Hello.", 0)
    assert ran.result["usage"]["input_tokens"] == 5


def test_hooks_are_listed_inside_a_session(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text('[[hooks.Stop]]\ncommand = "make lint"\n')
    assert "Stop" in (shown := place.run("-m", place.script(), "-p", "/hooks").out)
    assert "make lint" in shown


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("/usgae", "Unknown command /usgae. Did you mean /usage?"),
        ("/zzzzz now", "Unknown command /zzzzz."),
        ("/theme dark", "/theme works only in the terminal."),
        ("/copy", "/copy works only in the terminal."),
        ("/effort colossal", "Unknown effort 'colossal'"),
    ],
)
@pytest.mark.parametrize("output", [(), JSON, STREAM])
def test_an_unknown_command_is_an_error_and_does_not_reach_the_model(
    place: Place, typed: str, says: str, output: tuple[str, ...]
) -> None:
    ran = place.run("-m", place.script({"text": "I was asked."}), "-p", typed, *output)
    assert ran.code == 2
    if not output:
        assert ran.out == ""
        assert ran.err.startswith(f"agentcli: {says}")
        return
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_during_execution", True)
    assert ran.result["result"].startswith(says)
    if output is STREAM:
        assert of_commands(ran) == [(typed.split()[0], True)]


@pytest.mark.parametrize(
    "text",
    ["/usr/bin/python is broken, why?", "// a comment", "/* a comment */", "/ alone", "/", "//", "/- item"],
)
def test_text_that_resembles_a_command_is_a_prompt(place: Place, text: str) -> None:
    assert place.run("-m", place.script({"text": "I was asked."}), "-p", text).out == "I was asked.\n"


def test_a_persons_own_command_is_a_prompt(place: Place) -> None:
    write_command(place.home, "greet", "Say hello to $1 in $2.")
    ran = place.run("-m", place.script(USED), "-p", "/greet Ann Dutch", *JSON)
    assert (ran.code, ran.result["result"], ran.result["num_turns"]) == (0, "Hello.", 1)
    assert prompts_of(place, ran.result["session_id"]) == ["Say hello to Ann in Dutch."]


def test_a_projects_command_counts_with_trust(place: Place) -> None:
    write_command(place.folder / ".agentcli", "greet", "Say hello.")
    model = place.script(USED)
    assert place.run("-m", model, "-p", "/greet").code == 2
    assert place.run("-m", model, "-p", "/greet", "--trust").out == "Hello.\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["/usage", "/usage of this API is unclear", "/export zz.md", "/no-such-command"])
@pytest.mark.parametrize("how", [(), ("-p",), ("-p", "-")])
@pytest.mark.parametrize("output", [(), STREAM])
def test_piped_text_is_a_prompt_and_never_a_command(
    place: Place, text: str, how: tuple[str, ...], output: tuple[str, ...]
) -> None:
    ran = place.run("-m", place.script({"text": "I was asked."}), *how, *output, stdin=text)
    assert ran.code == 0, ran
    assert "I was asked." in ran.out
    assert list(place.folder.iterdir()) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("typed", ["/usage of this API is unclear", "/cost now", "/clear all", "/plan it", "/status 1"])
@pytest.mark.parametrize("output", [(), JSON, STREAM])
def test_a_command_that_takes_no_argument_refuses_one(place: Place, typed: str, output: tuple[str, ...]) -> None:
    ran = place.run("-m", place.script({"text": "I was asked."}), "-p", typed, *output)
    assert ran.code == 2
    assert f"{typed.split()[0]} takes no arguments" in ran.out + ran.err
    assert "I was asked." not in ran.out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["a\x1b[2Jb.md", "a\nb.md", "a\x7f.md", "a\x9bb.md"])
def test_a_conversation_is_not_written_under_a_name_with_control_characters(place: Place, name: str) -> None:
    ran = place.run("-m", place.script(), "-p", f"/export {name}")
    assert (ran.code, list(place.folder.iterdir())) == (2, [])
    assert "control character" in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("typed", ["/export ~nobody-here/a.md", "/add-dir ~nobody-here/a"])
def test_the_home_of_somebody_who_is_not_known_is_an_error_of_usage(place: Place, typed: str) -> None:
    ran = place.run("-m", place.script(), "-p", typed)
    assert ran.code == 2
    assert "Internal error" not in ran.err
    assert "~nobody-here/a" in ran.err


def test_piped_text_joins_only_commands_that_expand_to_a_prompt(place: Place) -> None:
    write_command(place.home, "greet", "Say hello to $ARGUMENTS.")
    for output in (JSON, STREAM):
        ran = place.run("-m", place.script(USED), "-p", "/greet Ann", *output, stdin="data\n")
        said = ["Say hello to Ann.\n\n<stdin>\ndata\n\n</stdin>"]
        assert prompts_of(place, ran.result["session_id"]) == said
        ran = place.run("-m", place.script(), "-p", "/effort high", *output, stdin="data\n")
        assert ran.result["result"].startswith("Effort is high from the next request on")


@pytest.mark.parametrize("typed", ["/clear", "/fork"])
def test_one_run_has_no_other_session_to_continue_with(place: Place, typed: str) -> None:
    model = place.script(USED)
    place.run("-m", model, "-p", "hi")
    place.run("-m", model, "-p", "hi again")
    ran = place.run("-m", model, "-c", "-p", typed)
    assert (ran.code, ran.out) == (2, "")
    assert "works only in the terminal or in an open stream" in ran.err
    assert "no other sessions" in place.run("-m", model, "-c", "-p", "/resume").out  # runs of -p are no conversations


# In a stream.


def test_commands_are_listed_and_reported_with_a_result_as_for_a_prompt(place: Place) -> None:
    write_command(place.home, "greet", "Say hello.")
    ran = place.run("-m", place.script(), "-p", "/usage", *STREAM)
    assert {"usage", "model", "clear", "greet"} <= set(ran.lines[0]["slash_commands"])
    assert not {"theme", "copy", "cost"} & set(ran.lines[0]["slash_commands"])
    assert [(line["type"], line.get("output")) for line in ran.lines[1:]] == [
        ("system", "No requests in this session yet."), ("result", None),
    ]  # fmt: skip
    assert ran.result["result"] == "No requests in this session yet."


def test_a_control_runs_a_command_also_while_a_turn_runs(place: Place) -> None:
    with talk(place, SLOW, flags=("--include-partial-messages",)) as running:
        running.say("count")
        running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        running.control("command", text="/effort high", id="e1")
        running.wait_for_type("system", "control")
        ran = running.ended()
    kinds = [line["type"] for line in ran.lines if line["type"] == "result" or line.get("subtype") == "command"]
    assert kinds == ["system", "result"]
    (told,) = ran.of("system", "command")
    assert (told["command"], told["is_error"]) == ("/effort", False)
    assert told["output"].startswith("Effort is high from the next request on")
    (acknowledged,) = ran.of("system", "control")
    assert (acknowledged["id"], acknowledged["ok"]) == ("e1", True)


def test_a_command_that_fails_says_so_once(place: Place) -> None:
    with talk(place, {"text": "Still here."}) as running:
        running.control("command", text="/nonsense", id=1)
        running.control("command", text="/permissions allow")
        running.control("command", text="usage")
        running.say("there?")
        ran = running.ended()
    assert of_commands(ran) == [("/nonsense", True), ("/permissions", True)]
    assert [line["error"] for line in ran.of("system", "input_error")] == [
        "'usage' is not a slash command. Commands start with /."
    ]
    (acknowledged,) = ran.of("system", "control")
    assert (acknowledged["id"], acknowledged["ok"]) == (1, False)
    assert "Unknown command /nonsense" in acknowledged["error"]
    assert [line["result"] for line in ran.of("result")] == ["Still here."]


def test_a_control_with_a_persons_own_command_runs_a_turn(place: Place) -> None:
    write_command(place.home, "greet", "Say hello to $ARGUMENTS.")
    with talk(place, USED) as running:
        running.control("command", text="/greet Ann")
        ran = running.ended()
    assert of_commands(ran) == [("/greet", False)]
    assert [line["result"] for line in ran.of("result")] == ["Hello."]
    assert prompts_of(place, ran.result["session_id"]) == ["Say hello to Ann."]


def test_messages_that_are_commands_are_answered_in_their_order(place: Place) -> None:
    write_command(place.home, "greet", "Say hello.")
    with talk(place, USED, {"text": "Two."}, {"text": "Three."}) as running:
        for text in ("hi", "/usage", "/greet", "/nonsense", "third"):
            running.say(text)
        ran = running.ended()
    assert ran.code == 0
    first, usage, second, wrong, third = ran.of("result")
    assert [line["result"] for line in (first, second, third)] == ["Hello.", "Two.", "Three."]
    assert USAGE in usage["result"]
    assert (wrong["is_error"], wrong["num_turns"]) == (True, 0)
    assert of_commands(ran) == [("/usage", False), ("/greet", False), ("/nonsense", True)]
    assert prompts_of(place, ran.result["session_id"]) == ["hi", "Say hello.", "third"]


def test_a_command_in_blocks_takes_an_image_along(place: Place) -> None:
    write_command(place.home, "see", "What is this?")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    with talk(place, USED) as running:
        running.send(
            {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "/see"}, image]}}
        )
        ran = running.ended()
    (said,) = said_in(place, ran.result["session_id"])
    assert [block["type"] for block in said] == ["text", "image"]


def test_an_early_message_may_be_a_command(place: Place) -> None:
    with talk(place) as running:
        running.control("steer", message={"role": "user", "content": "/usage"})
        ran = running.ended()
    assert of_commands(ran) == [("/usage", False)]
    assert ran.of("result") == []


def test_an_interrupt_ends_a_command_too(place: Place) -> None:
    with talk(place, {"text": "never", "delay_ms": 20_000}) as running:
        running.say("/btw take your time")
        running.control("interrupt")
        running.wait_for_type("result")
        running.say("/plan")
        ran = running.ended()
    interrupted, answered = ran.of("result")
    assert (interrupted["subtype"], interrupted["is_error"]) == ("interrupted", True)
    assert answered["subtype"] == "success"


def test_a_signal_ends_a_command_and_nothing_begins_after_it(place: Place) -> None:
    with talk(place, {"text": "never", "delay_ms": 20_000}, {"text": "never"}) as running:
        running.say("/btw take your time")
        running.say("next")
        running.control("dance")
        running.wait_for_type("system", "input_error")
        running.signal(signal.SIGTERM)
        ran = running.left()
    assert ran.code == 143
    assert [line["subtype"] for line in ran.of("result")] == ["interrupted"]


def test_clear_and_resume_begin_another_session_with_an_init_of_its_own(place: Place) -> None:
    with talk(place, USED, {"text": "Two."}, {"text": "Three."}) as running:
        running.say("one")
        running.say("/clear")
        running.say("two")
        running.wait_for(lambda line: line.get("result") == "Two.")
        first = running.wait_for_type("system", "init")["session_id"]
        running.control("command", text=f"/resume {first}", id="r")
        running.wait_for_type("system", "control")
        running.say("three")
        ran = running.ended()
    opened = [line["session_id"] for line in ran.of("system", "init")]
    assert opened[0] == opened[2] != opened[1]
    assert [(line["result"], line["session_id"]) for line in ran.of("result") if line["num_turns"]] == [
        ("Hello.", opened[0]), ("Two.", opened[1]), ("Three.", opened[0]),
    ]  # fmt: skip
    assert prompts_of(place, opened[0]) == ["one", "three"]


def test_clear_keeps_what_was_chosen_for_the_conversation_before(place: Place) -> None:
    another = place.script(USED)
    with talk(place, USED) as running:
        for text in ("/plan", f"/model {another} high", "/clear", "/status"):
            running.control("command", text=text, id=text)
        ran = running.ended()
    assert ran.of("system", "init")[1]["permission_mode"] == "plan"
    assert ran.of("system", "init")[1]["model"] == another
    status = ran.of("system", "command")[-1]["output"]
    assert f"{another}, effort high" in status


def test_another_session_is_not_opened_while_a_turn_runs(place: Place) -> None:
    with talk(place, SLOW, flags=("--include-partial-messages",)) as running:
        running.say("count")
        running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        running.control("command", text="/clear")
        told = running.wait_for_type("system", "command")
        ran = running.ended()
    assert told["is_error"]
    assert "Interrupt it first" in told["output"]
    assert ran.result["result"] == "one two three four"


def test_nobody_is_asked_in_a_session_opened_after_the_end_of_input(place: Place) -> None:
    with talk(
        place, USED, {"tool_calls": [call("bash", command="touch made")]}, {"text": "{{last_result}}"}
    ) as running:
        for text in ("one", "/clear", "two"):
            running.say(text)
        ran = running.ended()
    assert "no one can approve them" in ran.result["result"]


def test_quit_ends_the_stream_after_what_was_asked_before(place: Place) -> None:
    with talk(place, USED) as running:
        running.say("one")
        running.say("/quit")
        running.say("two")
        ran = running.left()
    assert ran.code == 0
    assert [line["result"] for line in ran.of("result")] == ["Hello.", ""]


def test_settings_without_a_value_are_listed_and_with_one_changed_or_kept(place: Place) -> None:
    kept = ("/permissions mode plan", "/effort high keep")
    with talk(place) as running:
        for text in ("/model", "/effort", "/permissions", *kept, "/effort", "/permissions"):
            running.control("command", text=text)
        ran = running.ended()
    assert not any(is_error for _, is_error in of_commands(ran))
    models, effort, permissions, mode, kept, effort_after, permissions_after = (
        line["output"] for line in ran.of("system", "command")
    )
    assert models.startswith("● scripted/")
    assert any(line.split()[:4] == ["anthropic/claude-sonnet-5-5", "no", "key", "1M"] for line in models.splitlines())
    assert effort.startswith("● default  model default\n  low      fast")
    assert permissions.startswith("Mode default: asks before edits")
    assert mode == "Mode plan: changes nothing and presents a plan."
    assert kept == f"Effort is high from the next request on. Saved in {place.home / 'config.toml'}."
    assert (place.home / "config.toml").read_text() == '[tokens]\neffort = "high"\n'
    assert "\n● high" in effort_after
    assert permissions_after.startswith("Mode plan")


def test_a_setting_is_not_kept_in_a_file_that_cannot_be_read(place: Place) -> None:
    with talk(place, USED) as running:
        running.say("hi")
        running.wait_for_type("result")
        (place.home / "config.toml").write_text("[tokens\n")
        running.control("command", text="/effort high keep")
        told = running.wait_for_type("system", "command")
    assert told["is_error"]
    assert (place.home / "config.toml").read_text() == "[tokens\n"


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"tool_calls": [call("file_edit", path=path, old_string=old, new_string=new)]}


def diff_after(place: Place, *replies: Any, then: str = "") -> str:
    """What /diff says after these replies and a change from elsewhere."""
    flags = ("-m", place.script(*replies, {"text": "Done."}), "-p")
    place.run(*flags, "go", "--permission-mode", "bypassPermissions")
    if then:
        (place.folder / "a.py").write_text(then)
    return place.run("-m", place.script(), "-c", "-p", "/diff").out


LINES = "".join(f"line {number}\n" for number in range(1, 30))


def test_diff_shows_the_edits_of_the_session_taken_together(place: Place) -> None:
    (place.folder / "a.py").write_text(LINES)
    (place.folder / "b.py").write_text("same\n")
    made = [
        edit("a.py", "line 2\n", "line two\n"),
        edit("a.py", "line two\n", "line II\nline II b\n"),
        edit("a.py", "line 20\n", "line XX\n"),
        edit("b.py", "same", "other"),
        edit("b.py", "other", "same"),
        {"tool_calls": [call("file_write", path="new.txt", content="no end")]},
        {"tool_calls": [call("bash", command="ls")]},
    ]
    said = diff_after(place, *made)
    assert said == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,5 +1,6 @@\n line 1\n-line 2\n+line II\n+line II b\n line 3\n line 4\n line 5\n"
        "@@ -17,7 +18,7 @@\n line 17\n line 18\n line 19\n-line 20\n+line XX\n line 21\n line 22\n line 23\n"
        "--- a/new.txt\n+++ b/new.txt\n@@ -0,0 +1 @@\n+no end\n\\ No newline at end of file\n"
    )


def test_diff_leaves_out_what_others_changed_elsewhere_in_the_file(place: Place) -> None:
    (place.folder / "a.py").write_text(LINES)
    after = LINES.replace("line 2\n", "line two\n").replace("line 25\n", "line 25, mine\n")
    said = diff_after(place, edit("a.py", "line 2\n", "line two\n"), then=after)
    assert "+line two" in said
    assert "mine" not in said


def test_diff_shows_what_commands_changed_and_names_what_is_not_text(place: Place) -> None:
    (place.folder / "a.py").write_text(LINES)
    (place.folder / "gone.txt").write_text("old\n")
    commands = "sed -i 's/line 20/row 20/' a.py; rm gone.txt; printf 'x\\0' > b.bin; mkdir new"
    touched = {"tool_calls": [call("bash", command=commands)]}
    said = diff_after(place, edit("a.py", "line 2\n", "line two\n"), touched)
    assert "-line 2\n+line two\n" in said
    assert "-line 20\n+row 20\n" in said
    assert "--- a/gone.txt\n+++ b/gone.txt\n@@ -1 +0,0 @@\n-old\n" in said
    assert said.endswith("Also changed, but not shown: b.bin.\n")


def test_diff_of_what_was_undone_is_empty(place: Place) -> None:
    (place.folder / "a.py").write_text(LINES)
    diff_after(place, edit("a.py", "line 2\n", "line two\n"))
    place.run("undo", "--yes")
    assert place.run("-m", place.script(), "-c", "-p", "/diff").out.startswith("No recorded file changes")


def test_diff_where_changes_are_not_recorded_names_the_other_one(place: Place) -> None:
    ran = place.run("-m", place.script(), "-p", "/diff", env={"AGENTCLI_CHECKPOINTS_ENABLED": "false"})
    assert "File changes are not recorded" in ran.err
    assert "!git diff HEAD" in ran.err


def test_diff_of_a_session_without_edits_names_the_other_one(place: Place) -> None:
    assert diff_after(place) == "No recorded file changes in this session. To see git's: !git diff HEAD\n"
