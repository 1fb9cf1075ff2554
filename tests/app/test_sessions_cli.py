"""`agentcli sessions`, run as people and scripts run it."""

from __future__ import annotations

import json
import random
import stat
import string
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pexpect
import pytest

from tests.app.running import Place, Ran

pytestmark = pytest.mark.slow  # each test starts the program

KEY = f"sk-ant-api03-{''.join(random.Random(7).choices(string.ascii_letters + string.digits, k=93))}AA"


class Program(Place):
    """agentcli in a directory and a home of its own."""

    def session(self, prompt: str, *replies: dict[str, Any], **flags: str) -> str:
        """Run a short session; gives its id."""
        given = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]
        model = self.script(*(replies or ({"text": f"About {prompt}: yes."},)))
        run = self.run("-p", prompt, "-m", model, "--output-format", "json", *given)
        assert run.code == 0, run.err
        return str(json.loads(run.out)["session_id"])

    def __call__(self, *arguments: str, stdin: str | None = None) -> Ran:
        return self.run("sessions", *arguments, stdin=stdin)

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        run = self(*arguments, "--json", stdin=stdin)
        assert run.code == 0, run.err
        return json.loads(run.out)

    @property
    def database(self) -> Path:
        return self.home / "state" / "sessions.db"

    def change(self, statement: str) -> None:
        with closing(apsw.Connection(str(self.database))) as db:
            db.execute(statement)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_a_search_prints_what_it_found_and_where(program: Program, tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "echo nee''dle"}}
    id = program.session("look", {"text": "", "tool_calls": [call]}, {"text": "Done."})
    (found,) = program.json("search", "NEEDLE")
    assert {"session_id": id, "kind": "tool_result"}.items() <= found.items()
    assert "needle" in found["excerpt"]
    assert id in program("search", "needle").out
    assert program.json("search", "haystack") == []
    assert "Nothing found" in program("search", "haystack").out
    program.folder = tmp_path / "elsewhere"
    program.folder.mkdir()
    assert program.json("search", "needle") == []
    assert len(program.json("search", "needle", "--all")) == 1
    refused = program("search", "--", "->")
    assert (refused.code, refused.out) == (1, "")
    assert "letter or a digit" in refused.err


def test_a_fork_at_an_entry_continues_from_there(program: Program) -> None:
    id = program.session("first")
    program.run("-p", "second", "-m", program.script({"text": "Again."}), "-r", id)
    entries = program.json("show", id)["entries"]
    reply = next(entry for entry in entries if entry["body"]["kind"] == "assistant")
    made = program.json("fork", id[:20], "--at", reply["id"], "--name", "copy")
    assert made == {"session_id": made["session_id"], "forked_from": id, "entry_id": reply["id"]}
    assert [message["role"] for message in program.json("show", "copy")["messages"]] == ["user", "assistant"]
    run = program.run("-p", "third", "-m", program.script({"text": "On."}), "-r", "copy")
    assert run.out == "On.\n"
    assert [message["role"] for message in program.json("show", "copy")["messages"]] == ["user", "assistant"] * 2
    refused = program("fork", id, "--at", "nope")
    assert refused.code == 1
    assert "No entry begins with 'nope'" in refused.err


def test_a_session_is_removed_only_when_that_was_reported_and_comes_back(program: Program) -> None:
    id = program.session("first")
    refused = program("rm", id)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert program.json("rm", id, "--yes") == {"session_id": id}
    assert program.json("list") == []
    assert program("show", id).code == 1
    assert id in program("restore", id).out
    assert [row["id"] for row in program.json("list")] == [id]
    again = program("restore", id)
    assert again.code == 1
    assert "trash" in again.err


def test_on_a_terminal_it_is_asked_first(program: Program) -> None:
    id = program.session("first")
    for answer, is_left in (("n", True), ("y", False)):
        child = pexpect.spawn(
            sys.executable, ["-m", "agentcli", "sessions", "rm", id],
            cwd=str(program.folder), env=program.environment, encoding="utf-8", timeout=30,
        )  # fmt: skip
        child.expect_exact(f"Remove {id} (first, ")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == (1 if is_left else 0)
        assert bool(program.json("list")) == is_left


def test_texts_are_struck_out_for_good_and_what_is_not_touched_is_reported(program: Program) -> None:
    id = program.session("the word is sesame", {"text": "Sesame? sesame and swordfish."})
    other = program.session("sesame too")
    assert program("redact", id).code == 2
    program("rm", other, "--yes")
    damaged = program.database.with_name("sessions.db.damaged-1")
    of_earlier_version = program.database.with_name("agents.db.v4")
    for kept in (damaged, of_earlier_version):
        kept.write_text("sesame")
    told = program("redact", id, "sesame").out
    assert "Redacted in 2 places" in told
    assert all(f"Not changed: {kept}" in told for kept in (damaged, of_earlier_version))
    assert "prompt history" in told
    assert "Found nothing to redact" in program("redact", id, "sesame").out
    done = program.json("redact", id, "-", stdin="swordfish\r\n\nSesame\n")
    assert (done["session_id"], done["places"]) == (id, 2)
    assert not any(word in program.database.read_bytes().lower() for word in (b"sesame", b"swordfish"))
    program("restore", other)
    assert {row["title"] for row in program.json("list")} == {"the word is [redacted]", "[redacted] too"}


def test_probable_secrets_are_found_and_redacted(program: Program) -> None:
    id = program.session(f"why does {KEY} not work?")
    assert KEY.encode() in program.database.read_bytes()
    assert program.json("redact", id, "--found")["places"] >= 1
    assert KEY.encode() not in program.database.read_bytes()
    assert program.json("redact", id, "--found")["places"] == 0


def test_an_open_session_is_left_alone(program: Program) -> None:
    id = program.session("first")
    model = program.script({"text": "", "tool_calls": [{"name": "bash", "input": {"command": "sleep 60"}}]})
    with program.start("-p", "wait", "-m", model, "-r", id, "--output-format", "stream-json") as running:
        running.wait_for_type("assistant")
        for arguments in (("rm", id, "--yes"), ("redact", id, "first")):
            refused = program(*arguments)
            assert refused.code == 1
            assert f"{id} is open" in refused.err
        program.change("PRAGMA foreign_keys = off; DELETE FROM sessions")
        assert program("fsck").code == 1
        refused = program("fsck", "--repair")
        assert (refused.code, f"{id} is open. Close" in refused.err) == (1, True)


def test_a_sound_file_is_reported_to_be_sound_also_where_there_is_none(program: Program) -> None:
    for _ in range(2):
        assert program("fsck").code == program("fsck", "--repair").code == 0
        assert "is intact" in program("fsck").out
        assert program.json("fsck")["healthy"] is True
        program.session("first")


def test_damaged_entries_are_reported_and_left_out(program: Program) -> None:
    id = program.session("first")
    program.change("UPDATE entries SET body = replace(body, 'About', 'Xbout') WHERE kind = 'assistant'")
    program.change("UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
    before = program.database.read_bytes()
    for flag in ((), ("--repair",)):
        found = program("fsck", *flag)
        assert found.code == 1
        assert "checksum" in found.out
        assert "the entry it follows is not there" in found.out
        assert "Sessions continue without the damaged entries" in found.out
        assert program.database.read_bytes() == before
    assert "About first: yes." not in program("show", id).out
    resumed = program.run("-p", "on", "-m", program.script({"text": "On."}), "-r", id)
    assert (resumed.code, resumed.out) == (0, "On.\n")
    assert "its checksum is not that of its text" in resumed.err


def test_a_damaged_file_is_reported_and_replaced_by_the_copy(program: Program) -> None:
    id = program.session("first")
    again = ("-p", "on", "-m", program.script({"text": "On."}), "-r", id)
    sound = program.database.read_bytes()
    program.database.write_bytes(b"torn" + sound[4:])
    for refused in (program.run(*again), program("show", id)):  # only `fsck --repair` replaces a file
        assert (refused.code, "agentcli sessions fsck --repair" in refused.err) == (1, True), refused
    program.database.write_bytes(sound)
    program.change("PRAGMA foreign_keys = off; DELETE FROM sessions")
    before = program.database.read_bytes()
    found = program("fsck")
    assert (found.code, "damaged" in found.out, "--repair" in found.out) == (1, True, True)
    assert program.database.read_bytes() == before
    repaired = program("fsck", "--repair")
    assert repaired.code == 0, repaired.out
    (kept,) = program.database.parent.glob("sessions.db.damaged-*[0-9]")  # its write-ahead log ends with -wal
    assert str(kept) in repaired.out
    assert kept.read_bytes() == before
    assert stat.S_IMODE(program.database.stat().st_mode) == 0o600
    assert program("fsck").code == 0
    assert "About first: yes." in program("show", id).out
    assert program.run(*again).out == "On.\n"


@pytest.mark.parametrize("flag", [(), ("--repair",)])
def test_a_file_that_is_not_ours_is_refused_untouched(program: Program, flag: tuple[str, ...]) -> None:
    program.database.parent.mkdir(parents=True)
    for statement, says in (
        ("CREATE TABLE bookmarks (url)", "another program"),
        ("PRAGMA user_version = 99", "newer agentcli"),
    ):
        program.change(statement)
        before = program.database.read_bytes()
        refused = program("fsck", *flag)
        assert (refused.code, says in refused.err) == (1, True), refused.err
        assert program.database.read_bytes() == before
    program.database.unlink()
    program.database.mkdir()
    refused = program("fsck", *flag)
    assert refused.code == 1
    assert "cannot be opened" in refused.err
