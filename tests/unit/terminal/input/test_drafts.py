"""Text that was typed and not sent survives the session."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.frontends.terminal.input.typed_text import Drafts, TypedText
from agentcli.llm.messages import Base64Source, Image


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "draft.json"


def test_a_draft_comes_back_with_its_pastes(file: Path) -> None:
    pastes: dict[str, str | Image] = {
        "[Pasted #1 +9 lines]": "long\n" * 9,
        "[Image #1]": Image(Base64Source("image/png", "AA==")),
    }
    Drafts(file).save(TypedText("see [Pasted #1 +9 lines] and [Image #1]", pastes))
    assert Drafts(file).load() == TypedText("see [Pasted #1 +9 lines] and [Image #1]", pastes)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_later_draft_replaces_the_one_before(file: Path) -> None:
    drafts = Drafts(file)
    drafts.save(TypedText("one"))
    drafts.save(TypedText("two"))
    assert drafts.load() == TypedText("two")
    assert [path.name for path in file.parent.iterdir()] == ["draft.json"]


def test_a_draft_follows_into_the_session_that_begins(file: Path) -> None:
    drafts = Drafts(file)
    for session in ("", "id"):
        drafts.save(TypedText("one"), session)
    assert (drafts.load(), drafts.load("id")) == (None, TypedText("one"))


def test_a_draft_that_is_emptied_is_gone(file: Path) -> None:
    drafts = Drafts(file)
    drafts.save(TypedText(""))
    drafts.save(TypedText("two"))
    drafts.save(TypedText(""))
    assert drafts.load() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"text": 1}', b"\xff\xfe", b'{"text": "x", "pastes": 3}'])
def test_a_file_that_holds_no_draft_is_none(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert Drafts(file).load() is None


def test_a_disk_that_fails_takes_the_draft_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "no-folder" / "draft", tmp_path / "folder"):
        drafts = Drafts(file)
        drafts.save(TypedText("x"))
        assert drafts.load() is None
        drafts.save(TypedText(""))
    assert list((tmp_path / "folder").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "no-folder"]
