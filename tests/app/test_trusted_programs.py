"""Files of the workspace that trusted hooks and servers run are trusted with them, and run only as they were then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentcli.extensions.program_pins import REFUSE, RUN
from tests.app.running import Place, Ran, call
from tests.processes import needs_bubblewrap

SERVER = Path(__file__).parents[1] / "mcp_server.py"
DONE = {"text": "done"}
LIST = {"tool_calls": [call("file_list")]}


def trusted_hook(place: Place, event: str = "PreToolUse", command: str = "sh scripts/guard.sh") -> Path:
    """A project that is trusted with a hook, whose script leaves a line each time it is run."""
    script = place.folder / "scripts/guard.sh"
    script.parent.mkdir()
    script.write_text(f"echo ran >> {place.folder.parent}/runs\n")
    hooks = {event: [{"hooks": [{"type": "command", "command": command}]}]}
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli/hooks.json").write_text(json.dumps({"hooks": hooks}))
    assert str(script) in place.run("config", "trust").out
    return script


def runs(place: Place) -> int:
    file = place.folder.parent / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def stream(place: Place, *replies: dict[str, Any], mode: str = "auto") -> Ran:
    flags = ("--output-format", "stream-json", "--permission-mode", mode)
    ran = place.run("-p", "go", "-m", place.script(*replies, DONE), *flags)
    assert ran.code == 0, (ran.out, ran.err)
    return ran


def results(ran: Ran) -> list[str]:
    return [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        call("bash", command='x=scripts; echo "touch $PWD/../evil" > $x/guard.sh'),
        call("bash", command="mv scripts s2; mkdir scripts; echo evil > scripts/guard.sh"),
        call("file_edit", path="scripts/guard.sh", old_string="echo", new_string="exit 0; echo"),
    ],
)
@pytest.mark.parametrize("mode", ["acceptEdits", "auto"])
def test_a_session_cannot_change_the_script_of_a_hook(place: Place, mode: str, attack: dict[str, Any]) -> None:
    script = trusted_hook(place)
    before = script.read_bytes()
    ran = stream(
        place, {"tool_calls": [call("file_read", path="scripts/guard.sh")]}, {"tool_calls": [attack]}, LIST, mode=mode
    )
    assert script.read_bytes() == before
    assert runs(place) == 3, results(ran)


def test_a_script_in_an_added_folder_is_pinned_like_one_of_the_project(place: Place) -> None:
    added = place.folder.parent / "added"
    added.mkdir()
    (added / "guard.sh").write_text(f"echo ran >> {place.folder.parent}/runs\n")
    trusted_hook(place, command="sh ../added/guard.sh; sh scripts/guard.sh")
    env = {"AGENTCLI_PERMISSIONS_ADDITIONAL_DIRECTORIES": str(added)}
    assert "added/guard.sh" in place.run("config", "trust", env=env).out
    evil = {"tool_calls": [call("bash", command="x=added; echo 'touch evil' > ../$x/guard.sh")]}
    flags = ("--permission-mode", "bypassPermissions", "--sandbox", "danger-full-access")
    place.run("-p", "go", "-m", place.script(evil, LIST, DONE), *flags, env=env)
    assert runs(place) == 2
    assert not (place.folder / "evil").exists()


@needs_bubblewrap
def test_a_command_that_cannot_write_a_script_reads_why(place: Place) -> None:
    trusted_hook(place)
    (told,) = results(stream(place, {"tool_calls": [call("bash", command="x=scripts; echo evil > $x/guard.sh")]}))
    assert "[the sandbox does not let commands write scripts/guard.sh" in told
    (place.folder / "sub").mkdir()
    given = call("bash", command="x=../scripts; echo evil > $x/guard.sh", cwd="sub")
    (told,) = results(stream(place, {"tool_calls": [given]}))
    assert "[the sandbox does not let commands write ../scripts/guard.sh" in told


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cd scripts && ./guard.sh", "for f in scripts/g*.sh; do sh $f; done"])
def test_a_changed_script_lets_no_call_through_until_it_is_trusted(place: Place, command: str) -> None:
    script = trusted_hook(place, command=command)
    script.chmod(0o755)
    text = script.read_text()
    for change in (lambda: script.write_text(f"{text}\n# changed\n"), script.unlink):
        change()
        ran = stream(place, LIST, mode="bypassPermissions")
        assert "scripts/guard.sh has changed since you trusted it" in results(ran)[0]
    assert runs(place) == 0
    script.write_text(text)
    script.chmod(0o755)
    place.run("config", "trust")
    stream(place, LIST)
    assert runs(place) == 1


def test_a_changed_script_of_a_hook_that_refuses_nothing_is_not_run_and_named(place: Place) -> None:
    script = trusted_hook(place, event="PostToolUse")
    script.write_text("touch ../evil\n")
    ran = stream(place, LIST)
    assert "scripts/" in results(ran)[0]
    assert any("guard.sh has changed" in line["text"] for line in ran.of("system", "notice"))
    assert not (place.folder.parent / "evil").exists()


@pytest.mark.slow
def test_the_person_asked_may_allow_a_changed_script_from_then_on(place: Place) -> None:
    script = trusted_hook(place)
    script.write_text(script.read_text() + "# changed\n")
    flags = ("--input-format", "stream-json", "--output-format", "stream-json", "-p")
    with place.start("-m", place.script(LIST, LIST, DONE), *flags, stdin=True) as running:
        running.say("go")
        question = running.wait_for_type("system", "question")
        assert "scripts/guard.sh has changed" in question["question"]
        running.control("answer", id=question["id"], text=question["options"][0])
        running.wait_for_type("result")
    assert runs(place) == 2
    stream(place, LIST)
    assert runs(place) == 3


def test_a_script_that_changes_while_the_question_is_open_is_asked_about_again(place: Place) -> None:
    script = trusted_hook(place)
    script.write_text(script.read_text() + "# changed\n")
    flags = ("--input-format", "stream-json", "--output-format", "stream-json", "-p")
    with place.start("-m", place.script(LIST, DONE), *flags, stdin=True) as running:
        running.say("go")
        for answer, name in ((RUN, "question-1"), (REFUSE, "question-2")):
            running.wait_for_line(lambda line, name=name: f'"id":"{name}","question":' in line)  # type: ignore[misc]
            script.write_text("touch ../evil\n")
            running.control("answer", id=name, text=answer)
        running.wait_for_type("result")
    assert not (place.folder.parent / "evil").exists()


def test_trusting_the_project_again_counts_in_a_running_session(place: Place) -> None:
    script = trusted_hook(place)
    script.write_text(script.read_text() + "# changed\n")
    flags = ("--input-format", "stream-json", "--output-format", "stream-json", "-p")
    with place.start("-m", place.script(LIST, LIST, DONE), *flags, stdin=True) as running:
        running.say("go")
        question = running.wait_for_type("system", "question")
        place.run("config", "trust")
        running.control("answer", id=question["id"], text=question["options"][1])
        running.wait_for_type("result")
    assert runs(place) == 1


def test_with_trust_for_one_run_a_script_counts_as_it_is_at_its_start(place: Place) -> None:
    script = trusted_hook(place)
    script.write_text(script.read_text() + "# changed\n")
    evil = {"tool_calls": [call("bash", command="x=scripts; echo exit 0 >> $x/guard.sh")]}
    flags = ("--trust", "--output-format", "stream-json", "--permission-mode", "bypassPermissions")
    flags = (*flags, "--sandbox", "danger-full-access")
    ran = place.run("-p", "go", "-m", place.script(evil, LIST, DONE), *flags)
    assert runs(place) == 1
    assert "has changed" in results(ran)[1]


@pytest.mark.slow
def test_a_changed_server_of_a_project_is_not_started_until_it_is_approved(place: Place) -> None:
    program = place.folder / "server.py"
    program.write_text(f"import runpy\nrunpy.run_path({str(SERVER)!r}, run_name='__main__')\n")
    servers = {"test": {"command": sys.executable, "args": ["-I", "server.py"]}}
    (place.folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    place.run("config", "trust")
    add = {"tool_calls": [call("mcp__test__add", a=1, b=2)]}
    assert results(stream(place, add, mode="bypassPermissions"))[0] == "3"
    program.write_text(f"open('../evil', 'w')\n{program.read_text()}")
    (told,) = results(stream(place, add, mode="bypassPermissions"))
    assert "server.py has changed since you trusted it" in told
    assert not (place.folder.parent / "evil").exists()
    assert "server.py" in place.run("mcp", "approve", "test").out
    assert results(stream(place, add, mode="bypassPermissions"))[0] == "3"


@pytest.mark.slow
def test_what_a_hook_only_writes_is_not_held_to_anything(place: Place) -> None:
    trusted_hook(place, command="sh scripts/guard.sh >> hooks.log; date | tee last.log")
    (place.folder / "hooks.log").write_text("")
    stream(place, LIST, LIST)
    stream(place, LIST)
    assert runs(place) == 3
