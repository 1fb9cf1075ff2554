"""Adds pastes, images, history, stash, drafts and the external editor to the input."""

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agentcli.errors import UserError
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.input import typed_text
from agentcli.frontends.terminal.input.completion import FileIndex
from agentcli.frontends.terminal.input.prompt import KeyLabels
from agentcli.frontends.terminal.input.typed_text import Drafts, Pastes, ProjectHistory, TypedText
from agentcli.frontends.terminal.programs import edit_text
from agentcli.patterns import lazy_pattern

SAVE_DRAFT_AFTER_S = 0.2  # after the first unsaved change
_NAMED_IMAGE = lazy_pattern(r"(?<!\S)@~?/\S+?\.(?:png|jpe?g|gif|webp)\b", re.IGNORECASE)
# What the input is used for: for a question, the answer, a denial in words, comments on a plan's lines, or a rule.
Purpose = Literal["prompt", "answer", "denial", "plan_comment", "rule", "secret"]
INPUT_MARKS: dict[Purpose, str] = {
    "prompt": "› ", "answer": "answer: ", "denial": "No, because: ", "plan_comment": "comment: ", "rule": "rule: ",
    "secret": "key: ",
}  # fmt: skip
INPUT_HINTS: dict[Purpose, str] = {
    "answer": "Enter to send to the model · Esc to go back",
    "denial": "Enter to send to the model · Esc to go back",
    "plan_comment": "Enter to keep the comment · Esc to go back",
    "rule": "Enter to use this rule · Esc to go back",
    "secret": "Enter to use this key · Esc to go back",
}


class InputContext(Struct, frozen=True, kw_only=True):
    """The services that the input needs in a folder; `drafts` is None if nothing of the session is stored."""

    folder: Path
    files: FileIndex
    history: ProjectHistory
    drafts: Drafts | None


class Composer:
    """The text that is being written, its pastes, and the texts that can replace it."""

    def __init__(self, console: Console, context: InputContext, labels: KeyLabels) -> None:
        self._console, self.area = console, console.area
        self.pastes = Pastes()
        self._drafts = context.drafts
        self.session_id: Callable[[], str] = lambda: ""  # the open session's id; empty until its first prompt
        self._restored_id = ""  # of the session whose draft was restored last; empty for the draft of a new one
        self.history, self._folder = context.history, context.folder
        self._entry_number = 0  # of the history entry in the input: 1 is the newest, 0 the text that is being written
        self._entry_text = ""  # that entry's text, before the person edited it
        self._written = TypedText("")  # the text that was being written when the first entry was shown
        self._stash_key = labels.first("stash")
        self._stash: list[TypedText] = []
        self._save_timer: asyncio.TimerHandle | None = None  # saves the draft
        self._disk = ThreadPoolExecutor(1)  # one thread, so that drafts are written in order
        self.area.buffer.on_text_changed += lambda _: self._save_draft_soon()
        self.area.buffer.go_back_in_history = self.go_back_in_history

    @property
    def typed(self) -> TypedText:
        return self.pastes.typed(self.area.buffer.text)

    def take(self) -> TypedText:
        """Empty the input to send what was typed; it is in the history from now on."""
        self._attach_named_images()
        typed = self.typed
        self.add_to_history()
        self.area.replace_text("")
        self.pastes = Pastes()
        self.forget_draft()
        return typed

    def put(self, sent: TypedText) -> None:
        """Replace the text by one from the history; undo does not restore the old text."""
        self.pastes = Pastes()
        self.area.replace_text(self.pastes.adopt(sent))

    def put_before(self, earlier: TypedText) -> None:
        text, current = self.pastes.adopt(earlier), self.area.buffer.text
        self.area.set_text(f"{text}\n{current}" if current else text)

    def add_to_history(self) -> None:
        if self.typed.expand().strip():
            self.history.add(self.typed)

    def go_back_in_history(self, by: int) -> None:
        """Show an entry that is `by` older, or newer if negative; after the newest comes the text being written."""
        if not self.area.takes_prompt:  # the input takes an answer, for which earlier prompts are no use
            return
        entries, buffer = self.history.entries, self.area.buffer
        if buffer.text != self._entry_text:  # an edited entry is treated as text that is being written
            self._entry_number = 0
        if not self._entry_number:
            self._written = self.typed
        number = max(0, min(self._entry_number + by, len(entries)))
        if number == self._entry_number:
            return
        self._entry_number = number
        self.put(entries[number - 1] if number else self._written)
        self._entry_text = buffer.text
        if by < 0:  # at the end of the first line, so that Down goes through the lines before the next entry
            buffer.cursor_position = buffer.document.get_end_of_line_position() if number else len(buffer.text)

    def paste(self, data: str) -> None:
        if self.area.takes_prompt and (path := typed_text.image_path(data)) is not None:  # answers take no images
            try:
                self._insert(self.pastes.add_image(*typed_text.read_image(path)))
                return
            except (UserError, OSError) as error:  # then the path is inserted as text
                self._console.hint.show(str(error))
        self._insert(self.pastes.token_for(data))

    def _attach_named_images(self) -> None:
        """Replace each `@/PATH` of an image outside the folder by a token; the session attaches images inside it."""
        is_prompt = not self.area.buffer.text.startswith(("!", "/"))
        for mention in _NAMED_IMAGE.findall(self.area.buffer.text) if is_prompt else ():
            if (path := typed_text.image_path(mention[1:])) is not None and not path.is_relative_to(self._folder):
                with suppress(UserError, OSError):  # the session says why it is not attached
                    token = self.pastes.add_image(*typed_text.read_image(path))
                    self.area.replace_text(self.area.buffer.text.replace(mention, token))

    async def paste_image(self) -> None:
        if (data := await typed_text.clipboard_image(self._console.environment)) is not None:
            self._insert(self.pastes.add_image(data, "image/png"))
        else:
            self._console.hint.show("No image in the clipboard, or no program to read it (wl-paste, xclip, pngpaste).")

    def _insert(self, text: str, *, replaces: int = 0) -> None:
        """Insert text as one step that can be undone; `replaces` characters before the cursor go."""
        self.area.buffer.save_to_undo_stack()
        self.area.buffer.delete_before_cursor(replaces)
        self.area.buffer.insert_text(text)

    def token_at(self, *, ahead: bool) -> tuple[int, int] | None:
        """Return start and end of the token that has the character before the cursor or, with `ahead`, after it."""
        buffer = self.area.buffer
        return self.pastes.token_at(buffer.text, buffer.cursor_position + ahead)

    def delete_token(self) -> None:
        if (span := self.token_at(ahead=False)) is not None:
            self.area.buffer.cursor_position = span[1]
            self._insert("", replaces=span[1] - span[0])

    def skip_token(self, *, ahead: bool) -> None:
        if (span := self.token_at(ahead=ahead)) is not None:
            self.area.buffer.cursor_position = span[1] if ahead else span[0]

    def stash(self) -> None:
        if self.area.buffer.text:
            self._stash.append(self.typed)
            self.area.set_text("")
            self._console.hint.show(f"Stashed. {self._stash_key} in the empty input brings it back.")
        elif self._stash:
            self.put(self._stash.pop())

    def restore_draft(self) -> None:
        """Restore the text that was being written in this session when the program ended."""
        draft = self._drafts.load(self._restored_id) if self._drafts is not None else None
        if draft is not None and draft.text.strip():
            put = self.put_before if self.area.buffer.text else self.put  # text that was typed meanwhile stays
            put(draft)
            self._console.hint.show("Your draft is back.")

    def follow_session(self) -> None:
        """Restore the stored draft of a session that was opened; one that just began has none."""
        before, self._restored_id = self._restored_id, self.session_id()
        if self._restored_id and self._restored_id != before:
            self.restore_draft()

    def keep_as_draft(self, texts: Sequence[str]) -> None:
        """Store prompts that no session has received, with their pastes, as the draft for the next start."""
        for text in reversed(texts):  # each is put before the later ones
            self.put_before(next((sent for sent in self.history.entries if sent.text == text), TypedText(text)))
        self._save_draft()

    def _save_draft_soon(self) -> None:
        if self._drafts is not None and self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(SAVE_DRAFT_AFTER_S, self._save_draft)

    def _save_draft(self) -> None:
        self._save_timer = None
        if self._drafts is None or not self.area.takes_prompt:  # an answer, such as an API key, is never stored
            return
        draft = TypedText("") if self.area.buffer.text == "?" else self.typed  # a lone ? only shows the keys
        # In a thread, because an image has megabytes, and the next key must not wait for the disk.
        self._disk.submit(self._drafts.save, draft, self.session_id())

    def forget_draft(self) -> None:
        """Delete the stored draft, and do not save the current text."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self._drafts is not None:
            self._disk.submit(self._drafts.save, TypedText(""), self.session_id())

    async def edit_in_editor(self) -> None:
        before = self.typed.expand()  # an editor shows the contents of pastes in place of their tokens
        after = await self._console.lend_to(edit_text(before, self._console.environment))
        if after != before:
            self.area.set_text(after.rstrip("\n"))
