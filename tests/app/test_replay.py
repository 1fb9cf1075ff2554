"""`agentcli replay`: nothing differs where nothing changed, and what changed is told by its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.recorded import EDITS, compacted_session, rich_session, says, session
from tests.app.running import Place, call

pytestmark = pytest.mark.slow  # each test records a session and runs it again


def replayed(place: Place, id: str, *, code: int, env: dict[str, str] | None = None) -> Any:
    ran = place.run("replay", id, "--json", env=env)
    assert ran.code == code, (ran.out, ran.err)
    return json.loads(ran.out)


def kinds(report: Any) -> list[tuple[int, str]]:
    return [(one["turn"], one["kind"]) for one in report["differences"]]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_session_that_nothing_changed_is_replayed_as_it_was(place: Place) -> None:
    id = rich_session(place)
    before = tree(place.folder)
    report = replayed(place, id, code=0)
    assert report["differences"] == []
    assert (report["session_id"], report["turns"], report["requests"]) == (id, 2, 6)
    assert report["calls"] == 7  # without the denied one and the subagent
    assert report["not_replayed"] == {"create_subagent": 1}
    assert tree(place.folder) == before
    told = place.run("replay", id)
    assert "2 turns, 6 requests, 7 calls made again: no difference." in told.out
    assert "create_subagent ×1" in told.out


def test_files_begin_as_they_were_and_end_as_they_are(place: Place) -> None:
    """What the person changes later, and what later turns made, is not there when the first turn runs again."""
    (place.folder / "a.txt").write_text("one\n")
    (place.folder / "gone.txt").write_text("here\n")
    edit = call("file_edit", path="a.txt", old_string="one", new_string="two")
    id = session(
        place, "Edit", says("", call("bash", command="cat a.txt; ls; rm gone.txt"), edit), {"text": "."}, flags=EDITS
    )
    make = call(
        "bash",
        command="mkdir d; echo x > d/new.txt; ln -s new.txt d/link; chmod 600 a.txt; stat -c %a a.txt; cat a.txt",
    )
    session(place, "Make", says("", make), {"text": "."}, flags=("-c", *EDITS))
    (place.folder / "a.txt").write_text("three\n")
    (place.folder / "d" / "new.txt").unlink()
    assert kinds(replayed(place, id, code=0)) == []
    assert (place.folder / "a.txt").read_text() == "three\n"


def test_paths_of_the_workspace_lead_into_the_copy(place: Place) -> None:
    file = place.folder / "a.txt"
    file.write_text("one\n")
    write = call("file_write", path=str(place.folder / "b.txt"), content="b\n")
    command = call("bash", command=f"cd {place.folder} && echo two > {file}; pwd; cat {file}")
    id = session(place, "Go", says("", call("file_read", path=str(file)), write, command), {"text": "."}, flags=EDITS)
    file.write_text("mine\n")
    (place.folder / "b.txt").unlink()
    assert kinds(replayed(place, id, code=0)) == []
    assert file.read_text() == "mine\n"
    assert not (place.folder / "b.txt").exists()


def test_another_result_is_a_difference(place: Place) -> None:
    (place.folder / "untouched.txt").write_text("then\n")
    read = call("bash", command="cat untouched.txt")
    id = session(place, "Look", says("", read, call("bash", command="echo same")), {"text": "."})
    (place.folder / "untouched.txt").write_text("now\n")
    report = replayed(place, id, code=1)
    (one,) = report["differences"]
    assert one == {
        "turn": 1,
        "kind": "tool_result",
        "what": "Run cat untouched.txt",
        "recorded": "then",
        "replayed": "now",
    }
    told = place.run("replay", id)
    assert told.code == 1
    assert "  - then\n  + now" in told.out


def test_another_instruction_file_is_a_difference_of_the_prompt(place: Place) -> None:
    id = session(place, "Hello", {"text": "Hi."})
    (place.folder / "AGENTS.md").write_text("Use tabs.\n")
    (one,) = replayed(place, id, code=1)["differences"]
    assert (one["kind"], one["what"]) == ("prompt", "message 1 (user)")
    assert "Use tabs." in one["replayed"]
    assert "Use tabs." not in one["recorded"]


def test_another_system_text_or_set_of_tools_is_a_difference_of_the_prompt(place: Place) -> None:
    id = session(place, "Hello", {"text": "Hi."}, flags=("--append-system-prompt", "Be brief."))
    (one,) = replayed(place, id, code=1)["differences"]
    assert (one["kind"], one["what"]) == ("prompt", "system text")
    other = session(place, "Hello", {"text": "Hi."})
    (two,) = replayed(place, other, code=1, env={"AGENTCLI_TOOLS_ONLY": "bash"})["differences"]
    assert (two["kind"], two["what"]) == ("prompt", "tools")


def test_other_prices_are_a_difference_of_the_cost(place: Place) -> None:
    model = place.script({"text": "Hi.", "usage": {"input_tokens": 1_000_000, "output_tokens": 0}})
    ran = place.run("-p", "Hello", "-m", model, "--output-format", "json")
    id = json.loads(ran.out)["session_id"]
    provider, _, name = model.partition("/")
    (place.home / "config.toml").write_text(f'[models.{provider}."{name}".prices]\ninput = 2.0\n')
    (one,) = replayed(place, id, code=1)["differences"]
    assert (one["kind"], one["recorded"], one["replayed"]) == ("cost", "$0.000000", "$2.000000")


def test_nothing_reaches_the_network_or_what_was_granted(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("before\n")
    fetch = call("web_fetch", url="https://example.org/")
    write = call("bash", command=f"echo after > {outside}")
    full = ("--permission-mode", "bypassPermissions", "--sandbox", "danger-full-access")
    id = session(place, "Go", says("", write, fetch), {"text": "."}, flags=full)
    assert outside.read_text() == "after\n"
    outside.write_text("mine\n")
    report = replayed(place, id, code=1)  # the command could not do it again
    assert outside.read_text() == "mine\n"
    assert report["not_replayed"] == {"web_fetch": 1}
    assert kinds(report) == [(1, "tool_result")]


def test_hooks_of_the_person_are_not_run_again(place: Place, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    command = f'type = "command"\ncommand = "echo x >> {marks}"\n'
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(
        f'[[hooks.PreToolUse]]\nmatcher = "bash"\n[[hooks.PreToolUse.hooks]]\n{command}'
    )
    id = session(place, "Go", says("", call("bash", command="echo hi")), {"text": "."})
    assert marks.read_text() == "x\n"
    replayed(place, id, code=0)
    assert marks.read_text() == "x\n"


def test_answers_of_the_person_are_given_again(place: Place) -> None:
    (place.folder / "a.txt").write_text("one\n")
    edit = call("file_edit", path="a.txt", old_string="one", new_string="two")
    other = call("file_edit", path="a.txt", old_string="two", new_string="three")
    made = call("bash", command="echo made > made.txt")
    model = place.script(says("", edit, other, made), {"text": "."})
    with place.start(
        "-m", model, "--input-format", "stream-json", "--output-format", "stream-json", stdin=True
    ) as running:
        running.say("Go")
        seen: set[str] = set()
        for answer in ("approve", "deny", "approve"):
            asked = running.wait_for(
                lambda line: line.get("subtype") == "approval_requested" and line["id"] not in seen
            )
            seen.add(asked["id"])
            running.control(answer, id=asked["id"])
        ended = running.ended()
    assert (place.folder / "a.txt").read_text() == "two\n"
    assert (place.folder / "made.txt").read_text() == "made\n"
    report = replayed(place, ended.result["session_id"], code=0)
    assert report["calls"] == 2


def test_what_was_taken_back_between_turns_is_taken_back(place: Place) -> None:
    (place.folder / "a.txt").write_text("one\n")
    edit = call("file_edit", path="a.txt", old_string="one", new_string="two")
    read = call("file_read", path="a.txt")
    id = session(place, "Edit", says("", read, edit), {"text": "."}, flags=EDITS)
    assert place.run("undo", "--yes").code == 0
    session(place, "Look", says("", call("bash", command="cat a.txt")), {"text": "."}, flags=("-c", *EDITS))
    assert kinds(replayed(place, id, code=0)) == []


def test_compactions_are_taken_from_the_log(place: Place) -> None:
    id = compacted_session(place, turns=14)
    shown = json.loads(place.run("sessions", "show", id, "--json").out)
    made = [entry["body"].get("trigger", "auto") for entry in shown["entries"] if entry["body"]["kind"] == "compaction"]
    assert {"auto", "manual"} <= set(made)
    report = replayed(place, id, code=0)
    assert (report["requests"], report["calls"]) == (28, 14)


def test_a_turn_that_reached_its_limit_is_no_difference(place: Place) -> None:
    script = place.script(
        says("", call("bash", command="echo 1")), says("", call("bash", command="echo 2")), {"text": "."}
    )
    ran = place.run("-p", "Go", "-m", script, "--output-format", "json", "--max-turns", "2")
    assert ran.code == 53
    report = replayed(place, json.loads(ran.out)["session_id"], code=0)
    assert (report["requests"], report["calls"]) == (2, 1)


def test_a_turn_that_needs_fewer_requests_now_is_a_difference(place: Place) -> None:
    schema = ("--json-schema", '{"type": "object", "required": ["a"]}')
    id = session(place, "Go", {"text": "No JSON."}, {"text": '{"a": 1}'}, flags=schema)
    report = replayed(place, id, code=1)  # no schema asks again
    assert kinds(report) == [(1, "prompt"), (1, "calls")]
    assert (report["differences"][1]["recorded"], report["differences"][1]["replayed"]) == ("2", "1")


def test_bad_use_is_told_apart_from_a_difference(place: Place) -> None:
    assert place.run("replay", "no-such-session").code == 2
    assert place.run("replay").code == 2
    id = session(place, "Hello", {"text": "Hi."})
    elsewhere = place.folder.with_name("moved")
    place.folder.rename(elsewhere)
    place.folder = elsewhere
    ran = place.run("replay", id)
    assert (ran.code, "is not there" in ran.err) == (2, True)
