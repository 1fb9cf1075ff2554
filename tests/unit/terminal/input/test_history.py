"""Each project keeps its prompts over sessions, whatever the disk does."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory

from agentcli.frontends.terminal.input import typed_text as limits
from agentcli.frontends.terminal.input.typed_text import ProjectHistory, TypedText
from agentcli.llm.messages import Base64Source, Image


def entries(history: ProjectHistory) -> list[str]:
    """The texts, newest first."""
    return [sent.text for sent in history.entries]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history"


def test_entries_of_a_session_are_there_in_the_next(file: Path) -> None:
    first = ProjectHistory(file, "/p")
    for text in ("one", "two\nlines", "drei ü 文"):
        first.add(TypedText(text))
    for history in (first, ProjectHistory(file, "/p")):
        assert entries(history) == ["drei ü 文", "two\nlines", "one"]


def test_each_project_has_its_own(file: Path) -> None:
    ProjectHistory(file, "/p").add(TypedText("in p"))
    ProjectHistory(file, "/q").add(TypedText("in q"))
    assert entries(ProjectHistory(file, "/p")) == ["in p"]
    assert entries(ProjectHistory(file, "/q")) == ["in q"]


def test_the_file_is_the_persons_alone_and_says_when(file: Path) -> None:
    history = ProjectHistory(file, "/p")
    assert not file.parent.exists()
    ProjectHistory(file, "/p").add(TypedText("old"))
    file.chmod(0o644)
    file.write_text("")
    ProjectHistory(file, "/p").add(TypedText("secret"))
    assert entries(history) == ["secret"], "it is read when it is asked for"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    line = json.loads(file.read_text())
    assert line.keys() == {"project", "text", "time"}
    assert abs(line["time"] - time.time()) < 60


def test_the_same_twice_is_one_entry(file: Path) -> None:
    history = ProjectHistory(file, "/p")
    for text in ("a", "a", "b", "a"):
        history.add(TypedText(text))
    assert entries(history) == ["a", "b", "a"]
    ProjectHistory(file, "/p").add(TypedText("a"))  # has not read what another session sent last
    assert entries(ProjectHistory(file, "/p")) == ["a", "b", "a"]


def test_what_is_sent_before_the_file_is_read_comes_first_and_once(file: Path) -> None:
    ProjectHistory(file, "/p").add(TypedText("old"))
    history = ProjectHistory(file, "/p")
    history.add(TypedText("new"))
    assert entries(history) == ["new", "old"]
    history.add(TypedText("newer"))
    assert entries(history) == ["newer", "new", "old"]


def test_lines_that_are_not_entries_are_skipped(file: Path) -> None:
    file.parent.mkdir()
    FileHistory(str(file)).store_string("of the\nold format")
    with file.open("ab") as stream:
        stream.write(b'{"project": "/p"}\n{"project": 1, "text": 2, "time": 3}\n[]\n\xff\xfe{\n{"project"')
    ProjectHistory(file, "/p").add(TypedText("good"))
    assert entries(ProjectHistory(file, "/p")) == ["good"]


def test_the_newest_thousand_are_loaded(file: Path) -> None:
    file.parent.mkdir()
    lines = [json.dumps({"project": "/p", "text": f"entry {n}", "time": n}) for n in range(1_500)]
    file.write_text("\n".join(lines) + "\n")
    loaded = entries(ProjectHistory(file, "/p"))
    assert (len(loaded), loaded[0], loaded[-1]) == (1_000, "entry 1499", "entry 500")


def test_a_huge_file_is_read_at_its_end_only_and_trimmed(file: Path) -> None:
    file.parent.mkdir()
    line = json.dumps({"project": "/other", "text": "x" * 9_000, "time": 1}) + "\n"
    old = json.dumps({"project": "/p", "text": "too old", "time": 1}) + "\n"
    file.write_text(old + line * 1_000)
    history = ProjectHistory(file, "/p")
    assert entries(history) == []
    history.add(TypedText("new"))
    assert file.stat().st_size <= limits.KEPT_BYTES
    assert file.stat().st_mode & 0o777 == 0o600
    assert [json.loads(kept)["project"] for kept in file.read_text().splitlines()][-2:] == ["/other", "/p"]
    assert entries(ProjectHistory(file, "/p")) == ["new"]
    assert sorted(path.name for path in file.parent.iterdir()) == ["history", "history.lock"]


def test_an_entry_as_long_as_a_book_is_kept_for_the_session_only(file: Path) -> None:
    history = ProjectHistory(file, "/p")
    history.add(TypedText("x" * (limits.MAX_ENTRY_BYTES + 1)))
    assert len(history.entries) == 1
    assert entries(ProjectHistory(file, "/p")) == []


def test_a_disk_that_fails_takes_the_history_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "no-folder" / "history", tmp_path / "folder"):
        history = ProjectHistory(file, "/p")
        history.add(TypedText("kept in memory"))
        assert entries(history) == ["kept in memory"]


@pytest.mark.parametrize("is_held", [True, False], ids=["held by another", "unknown to the file system"])
def test_without_the_lock_an_entry_is_written_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    file.parent.mkdir()
    other = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT)
    if is_held:
        monkeypatch.setattr(limits, "LOCK_TIMEOUT_S", 0.01)
        fcntl.flock(other, fcntl.LOCK_EX)
    else:

        def refuse(descriptor: int, operation: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "no locks here")

        monkeypatch.setattr(fcntl, "flock", refuse)
    try:
        ProjectHistory(file, "/p").add(TypedText("kept"))
    finally:
        os.close(other)
    assert entries(ProjectHistory(file, "/p")) == ["kept"]


def _send(file: Path, name: str, filler: str) -> None:
    history = ProjectHistory(file, "/p")
    for number in range(100):
        history.add(TypedText(f"{name} {number} {filler}"))


@pytest.mark.slow
def test_several_processes_write_at_once_even_while_the_file_is_trimmed(file: Path) -> None:
    file.parent.mkdir()
    file.write_text((json.dumps({"project": "/q", "text": "x" * 9_000, "time": 1}) + "\n") * 930)  # just below 8 MB
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_send, args=(file, name, "y" * 500)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert file.stat().st_size < limits.MAX_FILE_BYTES
    loaded = entries(ProjectHistory(file, "/p"))
    assert {text.removesuffix(" " + "y" * 500) for text in loaded} == {f"{n} {i}" for n in "abcd" for i in range(100)}


IMAGE = Image(Base64Source("image/png", "A" * 1_000))
PASTED = "[Pasted #1 +120 lines]"


def test_pasted_text_is_stored_with_its_entry(file: Path) -> None:
    sent = TypedText(f"see {PASTED} [Image #1 4×4]", {PASTED: "line\n" * 120, "[Image #1 4×4]": IMAGE})
    ProjectHistory(file, "/p").add(sent)
    assert list(ProjectHistory(file, "/p").entries) == [sent]


def test_an_image_too_large_for_the_file_leaves_the_text(file: Path) -> None:
    image = Image(Base64Source("image/png", "A" * limits.MAX_ENTRY_BYTES))
    history = ProjectHistory(file, "/p")
    history.add(TypedText(f"see {PASTED}[Image #1 4×4]", {PASTED: "line\n" * 120, "[Image #1 4×4]": image}))
    assert len(history.entries[0].pastes) == 2
    assert list(ProjectHistory(file, "/p").entries) == [TypedText(f"see {PASTED}", {PASTED: "line\n" * 120})]


def test_the_same_words_with_another_paste_are_another_entry(file: Path) -> None:
    history = ProjectHistory(file, "/p")
    for pasted in ("a", "b", "b"):
        history.add(TypedText(PASTED, {PASTED: pasted}))
    assert [sent.pastes[PASTED] for sent in history.entries] == ["b", "a"]


def test_entries_without_pastes_are_read_as_they_are(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"project": "/p", "text": "laid open\\nhere [Pasted #1 +9 lines]", "time": 1.5}\n')
    assert list(ProjectHistory(file, "/p").entries) == [TypedText("laid open\nhere [Pasted #1 +9 lines]")]


def test_without_a_file_it_lasts_for_the_session() -> None:
    history = ProjectHistory(None, "/p")
    history.add(TypedText("one"))
    assert entries(history) == ["one"]
