"""Each line of a file is traced to the call that wrote it, by edit or by shell, over all sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.running import Place, call


def go(place: Place, prompt: str, *calls: dict[str, Any]) -> str:
    """Run a session; gives its id."""
    script = place.script({"tool_calls": list(calls)}, {"text": "done"})
    flags = ("--permission-mode", "bypassPermissions", "--output-format", "json")
    ran = place.run("-p", prompt, "-m", script, *flags)
    assert ran.code == 0, ran.err
    return str(json.loads(ran.out)["session_id"])


def blamed(place: Place, name: str) -> list[dict[str, Any]]:
    ran = place.run("blame", name, "--json")
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def whose(place: Place, name: str) -> list[tuple[str, str | None]]:
    return [(line["text"], line["prompt"]) for line in blamed(place, name)]


@pytest.fixture
def poem(place: Place) -> Place:
    (place.folder / "poem").write_text("mine 1\nmine 2\nmine 3\n")
    return place


def test_lines_have_the_session_the_call_and_the_prompt_that_wrote_them(poem: Place) -> None:
    id = go(poem, "change two", call("file_edit", path="poem", old_string="mine 2", new_string="two"))
    other = go(poem, "add four", call("bash", command="echo four >>poem"))
    one, two, three, four = blamed(poem, "poem")
    assert (one["text"], one["session_id"], one["call_id"], one["at"]) == ("mine 1", None, None, None)
    assert three["session_id"] is None
    assert (two["session_id"], two["tool"], two["prompt"]) == (id, "file_edit", "change two")
    assert two["model"].startswith("scripted/")
    assert (four["session_id"], four["tool"], four["did"]) == (other, "bash", "Run echo four >>poem")
    shown = json.loads(poem.run("sessions", "show", id, "--json").out)
    assert two["entry_id"] in {entry["id"] for entry in shown["entries"]}


@pytest.mark.slow
def test_what_a_person_wrote_between_and_after_is_nobodys(poem: Place) -> None:
    go(poem, "first", call("file_edit", path="poem", old_string="mine 1", new_string="first"))
    text = (poem.folder / "poem").read_text()
    (poem.folder / "poem").write_text(text + "by hand\n")
    go(poem, "second", call("bash", command="sed -i 's/mine 3/third/' poem"))
    (poem.folder / "poem").write_text("on top\n" + (poem.folder / "poem").read_text())
    assert whose(poem, "poem") == [
        ("on top", None),
        ("first", "first"),
        ("mine 2", None),
        ("third", "second"),
        ("by hand", None),
    ]


@pytest.mark.slow
def test_a_file_is_followed_through_its_names(poem: Place) -> None:
    go(poem, "write", call("file_write", path="old", content="".join(f"line {n}\n" for n in range(10))))
    go(poem, "move", call("bash", command="mkdir sub; mv old sub/new; sed -i 's/line 3/LINE 3/' sub/new"))
    go(poem, "again", call("bash", command="mv sub/new final; echo more >>final"))
    found = dict(whose(poem, "final"))
    assert found["line 0"] == found["line 9"] == "write"
    assert found["LINE 3"] == "move"
    assert found["more"] == "again"


@pytest.mark.slow
def test_lines_that_were_undone_belong_to_whoever_wrote_them_before(poem: Place) -> None:
    go(poem, "first", call("file_edit", path="poem", old_string="mine 1", new_string="first"))
    go(poem, "second", call("file_edit", path="poem", old_string="first", new_string="second"))
    assert poem.run("undo", "--yes").code == 0
    assert whose(poem, "poem")[0] == ("first", "first")


@pytest.mark.slow
def test_one_line_and_names_with_colons(poem: Place) -> None:
    go(poem, "odd", call("file_write", path="a:2", content="one\ntwo\n"))
    assert whose(poem, "a:2") == [("one", "odd"), ("two", "odd")]
    assert whose(poem, "a:2:2") == [("two", "odd")]
    assert "file_write" in poem.run("blame", "a:2").out
    ran = poem.run("blame", "poem:9")
    assert (ran.code, "There is no line 9" in ran.err) == (2, True)
    assert poem.run("blame", "nowhere").code == 2


def test_why_names_the_turn_that_wrote_a_line(poem: Place) -> None:
    id = go(poem, "change two", call("file_edit", path="poem", old_string="mine 2", new_string="two"))
    said = poem.run("-p", "/why poem:2", "-m", poem.script({"text": "never asked"})).out
    assert all(part in said for part in (id, "turn 1", "change two", "Edit poem"))
    assert "No session wrote" in poem.run("-p", "/why poem:1", "-m", poem.script({"text": "never asked"})).out
