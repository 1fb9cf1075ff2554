"""The programs of a workspace that trusted commands run, as the folders of the workspace become more."""

from __future__ import annotations

from pathlib import Path

from agentcli.extensions.program_pins import ProgramPins


def test_a_file_that_was_named_before_its_folder_was_added_is_held_to_what_it_was_then(tmp_path: Path) -> None:
    for folder in ("ws", "added"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "added/guard.sh"
    script.write_text("echo")
    pins = ProgramPins(cwd=tmp_path / "ws", root=tmp_path / "ws", load_trusted=None, store_trusted=lambda digests: None)
    pins.add("sh ../added/guard.sh")
    assert pins.program_files() == []
    pins.add_folders([tmp_path / "ws", tmp_path / "added"])
    assert (pins.program_files(), pins.changed_files("sh ../added/guard.sh")) == ([script], [])
    script.write_text("exit")
    assert pins.changed_files("sh ../added/guard.sh") == [script]
