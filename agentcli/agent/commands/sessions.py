"""Commands about conversations: new, stored and forked ones, earlier points, and the file changes of each turn."""

import re
import time
from functools import partial

from agentcli.agent import undo
from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand, number_in, numbered_list
from agentcli.agent.interfaces import Checkpoints, SearchHit, SessionInfo
from agentcli.agent.session import Session
from agentcli.agent.state import prompts
from agentcli.conversation.history import counted, shorten
from agentcli.errors import NoSession, SessionInUse, UsageError, UserError
from agentcli.settings.files import from_home

MAX_LISTED = 20  # lines of a list without a picker
_MAX_OFFERED = 200  # sessions in a picker
MAX_ONE_LINE = 80  # characters
MAX_TITLE = 46  # characters of a title, so that there is room for prompts beside it
MAX_PROMPT = 60  # characters


async def _run_clear(host: CommandHost, argument: str) -> Outcome:
    before = host.session.id
    await host.open_session(None)
    return f"New session. To return to the previous one: /resume {before[:13]}"


async def _run_resume(host: CommandHost, which: str) -> Outcome:
    if not which:
        return await _choose_session(host)
    sessions = [info for info in await host.sessions() if info.id != host.session.id]
    if which.isdigit() and len(which) < 4:  # a longer number may be the beginning of an id
        return await _open_session(host, sessions[number_in(which, len(sessions), "conversation")].id)
    try:
        return await _open_session(host, which)
    except NoSession:
        return await _choose_by_words(host, which)


async def _choose_session(host: CommandHost) -> Outcome:
    """Let the person choose a conversation of this directory; a second list has one-shots, or all directories."""
    sessions = [info for info in await host.sessions() if info.id != host.session.id]
    options = [_in_columns(info) for info in sessions]
    longer_lists = [("With one-shots…", "include agentcli -p"), ("All directories…", "")]
    chosen = await host.choose("Resume session", [*options, *longer_lists])
    if chosen is None:
        if not options:
            return "There are no other sessions in this directory. To search all directories: /resume WORDS"
        return numbered_list(options[:MAX_LISTED], "To resume one: /resume NUMBER. To search their text: /resume WORDS")
    if chosen >= len(options):
        with_one_shots = chosen == len(options)  # the first entry after the sessions
        cwd = host.session.runtime.calls.workspace.cwd if with_one_shots else None
        user_id = None if with_one_shots else ""  # None: of any user, because one-shots have a user of their own
        found = await host.stored_sessions.list(cwd=cwd, limit=_MAX_OFFERED, user_id=user_id)
        sessions = [info for info in found if info.id != host.session.id]
        rows = [(info.cwd, *_in_columns(info)) for info in sessions]
        options = [(title, f"{folder}  {prompts}".rstrip()) for folder, title, prompts in rows]
        chosen = await host.choose("Resume session", options)
    return await _open_session(host, sessions[chosen].id) if chosen is not None else ""


async def _choose_by_words(host: CommandHost, words: str) -> Outcome:
    newest: dict[str, SearchHit] = {}  # the newest hit in each session
    for hit in await host.stored_sessions.search(words, limit=_MAX_OFFERED):  # newest first
        newest.setdefault(hit.session_id, hit)
    newest.pop(host.session.id, None)
    if not newest:
        raise NoSession(words)
    hits = list(newest.values())
    options = [(f"{age(time.time() - hit.time):<10}  {shorten(hit.title, MAX_TITLE)}", hit.excerpt) for hit in hits]
    chosen = await host.choose("Resume session", options)
    if chosen is None:  # this front end has no picker
        rows = [(f"{label}  {hit.session_id[:13]}", detail) for hit, (label, detail) in zip(hits, options, strict=True)]
        return numbered_list(rows[:MAX_LISTED], "To resume one: /resume ID")
    return await _open_session(host, hits[chosen].session_id)


async def _open_session(host: CommandHost, session_id: str) -> Outcome:
    try:
        session = await host.open_session(session_id)
    except SessionInUse as error:
        options = [("Take it over", "it closes there"), ("Fork it", "continue in a copy"), ("Cancel", "")]
        chosen = await host.choose("This session is open in another agentcli. What do you want to do?", options)
        if chosen not in (0, 1):
            if chosen is None:  # nobody could be asked
                raise
            return "Cancelled."
        session = await host.open_session(error.session_id, fork=chosen == 1, take_over=chosen == 0)
    conversation = session.state.conversation
    count = len(conversation.queue.follow_ups)
    waiting = f" {counted(count, 'queued message')} from before will be sent next." if count else ""
    return f"Resumed {session.id} ({len(conversation.entries)} entries).{waiting}"


def _in_columns(info: SessionInfo) -> tuple[str, str]:
    """Return a session's age and title, and its last prompt, unless that is the title."""
    # Control characters are removed; some prompts have nothing else.
    first, last = ("".join(filter(str.isprintable, text)).strip() for text in (info.title, info.last_prompt))
    title = info.name or first or "(no prompt)"
    detail = f"→ {shorten(last, MAX_PROMPT)}" if last not in ("", title) else ""
    return f"{age(time.time() - info.updated):<10}  {shorten(title, MAX_TITLE)}", detail


def age(seconds: float) -> str:
    """Describe how long ago something was; "some time" if it is in the future because a clock was wrong."""
    if seconds < 60:
        return "just now" if seconds > -60 else "some time"
    for unit, unit_s, max_units in (("min", 60, 60), ("h", 3_600, 24), ("d", 86_400, 61), ("months", 2_629_746, 24)):
        if seconds < unit_s * max_units:
            return f"{int(seconds / unit_s)} {unit} ago"
    return f"{int(seconds / 31_556_952)} y ago"


async def _run_fork(host: CommandHost, argument: str) -> Outcome:
    original = host.session
    _require_idle(original, "fork the session")
    if not original.state.conversation.entries:
        return "There is nothing to fork yet."
    copy = await host.open_session(original.id, fork=True)
    return f"Forked to {copy.id}. The original is unchanged: /resume {original.id[:13]}"


def one_line(text: str) -> str:
    return shorten(" ".join(text.split()), MAX_ONE_LINE)


async def _run_rename(host: CommandHost, name: str) -> Outcome:
    if not name:
        raise UsageError("Add a name: /rename NAME")
    await host.stored_sessions.rename(host.session.id, name)
    return f"Renamed this session to {name}."


async def _run_export(host: CommandHost, name: str) -> Outcome:
    text = await host.document(name)
    title = text.split("\n", 1)[0]  # without a name, it is Markdown, which begins with its title
    name = name or (re.sub(r"[^\w]+", "-", title.lower()).strip("-")[:60] or "conversation") + ".md"
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", name):  # such a name would garble lists of files
        raise UsageError(f"The file name {name!r} contains a control character. Choose another: /export FILE")
    file = host.session.runtime.calls.workspace.cwd / from_home(name)
    try:
        import aiofiles

        async with aiofiles.open(file, "x", encoding="utf-8", errors="replace") as out:
            await out.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} already exists. Choose another file: /export FILE") from error
    except OSError as error:
        raise UserError(f"Could not write {file}: {error.strerror}.") from error
    return f"Exported to {file}."


SESSION_COMMANDS = (
    SlashCommand("clear", "start a new session; this one stays saved", _run_clear, aliases=("new", "reset")),
    SlashCommand(
        "resume",
        "resume a saved session",
        _run_resume,
        "[ID]",
        aliases=("sessions", "continue"),
        forms=("", "NUMBER|ID|NAME", "WORDS to search for"),
    ),
    SlashCommand("fork", "continue in a copy of this session", _run_fork, aliases=("branch",)),
    SlashCommand("rename", "rename this session", _run_rename, "NAME", aliases=("title",)),
    SlashCommand("export", "export this session to a file: .md, .html or .json", _run_export, "[FILE]"),
)


async def undo_in(
    session: Session,
    direction: undo.Direction,
    answer: str,
    confirm: undo.Confirm,
    *,
    turn: undo.TurnChanges | None = None,
) -> undo.UndoResult:
    """Undo or redo a turn's changes in an open session, for /undo, /redo and rewinds. Parameters are as in `undo`."""
    _require_idle(session, "undo its changes")
    checkpoints, calls = _checkpoints_of(session), session.runtime.calls
    # The changes of running jobs are undone, too, but the log does not have them yet.
    if changed := await checkpoints.changes_in_progress():
        session.append(*changed)
    host = undo.UndoHost(
        checkpoints=checkpoints,
        append=session.append,
        locks=calls.services.locks,
        shown=calls.workspace.shown,
        confirm=confirm,
    )
    return await undo.undo(session.state.conversation.entries, direction, answer, host, turn=turn)


def _require_idle(session: Session, next_step: str) -> None:
    if session.is_busy:
        raise UserError(f"A turn is running. Interrupt it first, then {next_step}.")


def _checkpoints_of(session: Session) -> Checkpoints:
    if (checkpoints := session.runtime.calls.recording.checkpoints) is None:
        raise UserError("File changes are not recorded because the setting checkpoints.enabled is off.")
    return checkpoints


async def _undo_or_redo(direction: undo.Direction, host: CommandHost, argument: str) -> Outcome:
    if argument not in ("", "yes", "list"):
        raise UsageError(f"Usage: /{direction} (asks first), /{direction} list or /{direction} yes (does not ask).")
    return (await undo_in(host.session, direction, argument, host.confirm)).text


async def _run_why(host: CommandHost, argument: str) -> Outcome:
    if not argument:
        raise UsageError("Add a file, and optionally a line: /why FILE[:LINE]")
    find, read = host.session.runtime.calls.workspace.real_path, _checkpoints_of(host.session).content
    authors = [line.author for line in await undo.blame(argument, find, host.stored_sessions, read) if line.author]
    if not authors:
        return f"No session wrote to {argument}."
    newest = max(authors, key=lambda author: author.at)
    return undo.format_author(newest, age(time.time() - newest.at))


_PARTS = ("conversation", "files", "both")


async def _run_rewind(host: CommandHost, argument: str) -> Outcome:
    """Rewind the conversation, the files or both to before a prompt. If its number is given, nothing is asked."""
    session = host.session
    offered = prompts(session.state.conversation)[::-1]  # newest first
    if not offered:
        return "There is no prompt to rewind to."
    words = argument.split()
    part = words.pop() if words and words[-1] in _PARTS else ""
    if number := " ".join(words):
        entry_id, text = offered[number_in(number, len(offered), "prompt")]
    else:
        times = {entry.id: entry.time for entry in session.state.conversation.path}
        options = [(one_line(text), age(time.time() - times[id])) for id, text in offered]
        chosen = await host.choose("Rewind to before which prompt?", options)
        if chosen is None:
            return numbered_list(options[:MAX_LISTED], f"To rewind: /rewind NUMBER [{'|'.join(_PARTS)}]")
        entry_id, text = offered[chosen]
    changes = undo.History(session.state.conversation.entries).since(entry_id)
    # If no files changed, there is nothing to choose. With a number, only the conversation is rewound by default.
    if not part and not number and changes is not None:
        count = len({change.path for change in changes.changes})
        files = f"{counted(count, 'file')} changed since then"
        details = ("keep the files as they are", f"{files}; keep the conversation", files)
        chosen = await host.choose("Rewind what?", [*zip(map(str.capitalize, _PARTS), details, strict=True)])
        if chosen is None:
            return "Nothing was rewound."
        part = _PARTS[chosen]
    part = part or "conversation"
    if part == "conversation":
        report = "No files were changed."
    elif changes is None:
        report = "No file changes since then."
    else:
        result = await undo_in(session, "undo", "yes" if number else "", host.confirm, turn=changes)
        if not result.is_wanted:
            return result.text
        report = result.text
    if part != "files":
        host.put_into_input(session.rewind(entry_id))
        report = f'Rewound to before "{one_line(text)}"\n{report}'
    return report


UNDO_COMMANDS = (
    SlashCommand("undo", "undo the file changes of the last turn", partial(_undo_or_redo, "undo"), "[list|yes]"),
    SlashCommand(
        "rewind",
        "rewind the conversation, the files or both to before a prompt",
        _run_rewind,
        "[WHERE]",
        aliases=("checkpoint",),
        forms=("", "NUMBER [conversation|files|both] (1 is the newest prompt)"),
    ),
    SlashCommand("why", "show which turn and tool call wrote a file or a line", _run_why, "FILE[:LINE]"),
    SlashCommand("redo", "reapply the changes that /undo reverted", partial(_undo_or_redo, "redo"), "[list|yes]"),
)
