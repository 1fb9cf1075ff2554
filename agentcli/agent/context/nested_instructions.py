"""Gives the model the instruction files of a folder below the working directory when a call first goes there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.instructions import InstructionReader, Instructions, instruction_paths, nested_instructions
from agentcli.llm.messages import ToolUse
from agentcli.tools.path_names import parse_name

_FILES = ("file_read", "file_write", "file_edit")
_FOLDERS = ("file_list", "grep_search")


@dataclass
class NestedInstructions:
    """`root` is the project's folder. What the model was given is read from the conversation, also after a resume."""

    cwd: Path
    root: Path
    home: Path | None
    _looked: set[Path] = field(default_factory=set)

    def found(self, calls: Sequence[ToolUse], conversation: Conversation) -> Instructions:
        """The files of the folders that these calls are the first to touch."""
        folders = {folder for call in calls for folder in self._touched(call)} - self._looked
        if not folders:
            return Instructions()
        self._looked |= folders
        told = instruction_paths(entry.body for entry in conversation.request_entries)
        return nested_instructions(folders, self.cwd, self.root, told, home=self.home)

    def read_again(self, conversation: Conversation, told_now: str) -> Instructions:
        """Read again the files that the model was given before, except those that `told_now` has already."""
        reader = InstructionReader(root=self.root, home=self.home)
        for path in instruction_paths(entry.body for entry in conversation.request_entries):
            if f'<instructions path="{path}">' not in told_now:
                reader.take(Path(path), self.root)
        return reader.take_found()

    def _touched(self, call: ToolUse) -> Iterator[Path]:
        name = call.input.get("cwd" if call.name == "bash" else "path")
        if not isinstance(name, str) or "\0" in (name := parse_name(name)):
            return
        path = Path(normpath(self.cwd / name))
        if call.name in _FILES:
            path = path.parent
        elif call.name not in (*_FOLDERS, "bash"):
            return
        if path != self.cwd and path.is_relative_to(self.cwd):
            yield path
