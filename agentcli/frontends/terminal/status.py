"""Defines the terminal's interfaces to its screen and to the program that starts it; draws the status line."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from agentcli.agent.commands.command import CommandSet
from agentcli.agent.commands.model import TIME_TO_LIVE_S
from agentcli.agent.events import AnyQuestion
from agentcli.agent.permissions.modes import MODE_TEXTS, Mode
from agentcli.agent.session import Session
from agentcli.agent.state import SessionSnapshot
from agentcli.conversation.instructions import git_branch
from agentcli.errors import UserError
from agentcli.frontends.hosts import SessionOpener
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.input.typed_text import TypedText
from agentcli.frontends.terminal.output.turn_view import TurnEnd, TurnView
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, in_rows, lines_of, plain, row_width
from agentcli.frontends.terminal.text.theme import RAW
from agentcli.patterns import lazy_pattern
from agentcli.settings.short_program import run_short_program

COMMAND_TIMEOUT_S = 2.0
MAX_OUTPUT_BYTES = 65_536
MAX_CUSTOM_ROWS = 3  # of a status command's output
JOB_CHECK_S = 2.0  # between checks while there are jobs, whose end no event reports
LONG_CONTEXT_TOKENS = 20_000  # from here on, the price of reading an uncached conversation is shown
_COLOURS = lazy_pattern(r"\x1b\[([\d;:]*)m")  # SGR of ECMA-48
_NAMES = {"tokens": "context_tokens", "window": "context_window"}  # in the JSON for status commands
_MODE_ROLES = {"default": "muted", "bypassPermissions": "error"}  # others: accent


class NothingChosen(UserError):
    """The person closed a list without choosing. The command that asked ends without a message."""


class TerminalActions(Protocol):
    """Everything that differs between a live screen and a plain one, which prints lines and redraws none."""

    is_live: bool = False

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, is_startup: bool = False
    ) -> int | None:
        """Let the person choose a (label, detail) pair; None if they cancel. If `is_startup`, they can type prompts."""

    async def ask_secret(self, question: str) -> str | None:
        """Ask for text that is neither shown nor stored; None when nothing was typed."""

    async def run_with_terminal(self, arguments: Sequence[str]) -> None: ...

    async def edit(self, text: str) -> str | None:
        """Return the text as the person's editor left it; None if no editor can be shown. Raises `UserError`."""
        return None

    async def run_own_command(self, command: str, *, to_model: bool) -> None:
        """Run a shell command that the person typed; its output goes `to_model` with the next message."""

    def put_into_input(self, text: str) -> None: ...

    def return_prompts(self, prompts: Sequence[TypedText]) -> bool:
        """Put prompts that the model has not answered back into the input; return False if that is impossible."""
        return False

    def ask_question(self, question: AnyQuestion) -> None:
        """Ask the person; the answer is submitted to the session when it comes."""

    def forget_question(self, id: str) -> None:
        """Withdraw a question that was decided elsewhere."""

    def session_opened(self) -> None:
        """Withdraw the previous session's questions: another session is shown from now on."""

    def draw_soon(self) -> None:
        """Show soon what has changed."""

    def turn_ended(self, end: TurnEnd) -> None:
        """React to the end of a turn; "auth" stands for a rejected key."""

    def show_prompt_sign(self) -> None:
        """Show that the next prompt can be typed: a command is done, and no turn runs."""

    def leave(self) -> None: ...


class TerminalOpener(SessionOpener, Protocol):
    """A `SessionOpener` that can also set up a model and keys with the person; `root` is the project's folder."""

    root: Path

    async def open_first(self, terminal: TerminalActions) -> Session:
        """Open the session that the command line means; ask which model if none is set up. Raises `UserError`."""

    def known_models(self) -> Sequence[tuple[str, str]]:
        """Return the models of the table as `provider/model`, with a note on each."""

    async def ask_key(self, terminal: TerminalActions, provider: str = "") -> str:
        """Ask for the key of `provider`, or of one that the person picks. Return a sentence about it, or "" without."""

    def review_project(self) -> tuple[str, Callable[[], str]] | str:
        """Return what the project's files would add, and a function that trusts them; a sentence if there are none."""
        # Both raise `UserError`. The function returns a sentence.

    async def reload(self, before: Session) -> Session:
        """Reopen a session with the current settings. Raises `UserError` before anything is closed."""

    def add_commands(self, commands: CommandSet, on_notice: Callable[[str], None]) -> None:
        """Add the slash commands of the settings, of skills, servers and subagents."""

    def forget_key(self, provider: str) -> str:
        """Remove a stored or typed key; return a sentence about it. Raises `UserError`."""

    def introduction(self) -> tuple[str, Sequence[str]]:
        """Return the program and its folder in one line, and the instruction files it has read there."""

    async def aclose(self) -> None:
        """Release what the sessions share, once they are closed."""


class SessionUse(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """The tokens of the next request, the model's window, and prices in dollars.

    `cost_usd` is None if a price is unknown; `cold_usd` is the price of reading the conversation without a cache.
    """

    tokens: int = 0
    window: int = 0
    cost_usd: float | None = 0.0
    budget_usd: float | None = None
    cold_usd: float | None = None

    @property
    def share(self) -> float:
        return self.tokens / self.window if self.window else 0.0


class SessionPlace(msgspec.Struct, frozen=True):
    session_id: str = ""
    cwd: str = ""
    branch: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the status line; `jobs` is the number of running background jobs."""

    model: str = ""
    mode: Mode = "default"
    effort: str = ""
    use: SessionUse = SessionUse()
    place: SessionPlace = SessionPlace()
    jobs: int = 0
    is_busy: bool = False

    def to_json(self) -> bytes:
        """Return the object that a status command gets: docs/terminal.md lists its fields."""
        fields = msgspec.to_builtins(self)
        use, place = fields.pop("use"), fields.pop("place")
        return msgspec.json.encode({**fields, **use, **place, "context_share": round(self.use.share, 4)})

    def to_claude_json(self) -> bytes:
        """Return the object in the form that status commands of Claude Code read."""
        use, place, percentage = self.use, self.place, round(100 * self.use.share)
        window = {"context_window_size": use.window, "total_input_tokens": use.tokens, "used_percentage": percentage}
        return msgspec.json.encode(
            {
                "hook_event_name": "Status",
                "session_id": place.session_id,
                "cwd": place.cwd,
                "model": {"id": self.model.partition("/")[2], "display_name": short_model(self.model)},
                "workspace": {"current_dir": place.cwd, "project_dir": place.cwd},
                "cost": {"total_cost_usd": use.cost_usd},
                "context_window": {**window, "remaining_percentage": 100 - percentage},
            }
        )


def status_rows(
    status: Status, columns: int, *, custom: Sequence[Row] = (), hint: str = "", vi_mode: str = ""
) -> list[Row]:
    """Return the status rows: vi mode, hint, permission mode, figures. A narrow window drops parts from the end.

    `custom` rows replace the figures. A hint that is wider than the window takes the place of everything else.
    """
    if len(hint) > columns:
        return in_rows([("warning", hint)], columns, hang=2)
    is_mode_known = status.place.session_id or status.mode != "default"  # False until the session is open
    mode = MODE_TEXTS[status.mode].name if is_mode_known else ""
    parts = [
        ("muted" if vi_mode == "INSERT" else "accent", vi_mode),
        ("warning", hint),
        (_MODE_ROLES.get(status.mode, "accent"), mode),
        *([] if custom else _figures(status)),
    ]
    row: Row = []
    for role, text in parts:
        added: Row = [*([("muted", " · ")] if row else []), (role, printable(text))]
        if row and text and row_width(row) + row_width(added) > columns:
            break
        row += added if text else []
    if custom:
        row += [*([("muted", " · ")] if row else []), *custom[0]]
    return [clipped(line, columns) for line in (row, *custom[1:])]


def coloured_rows(output: str) -> list[Row]:
    """Return the first lines of a program's output with their colours, and nothing else that acts on a terminal."""
    text, codes = list[Fragment](), ""
    for number, part in enumerate(_COLOURS.split(output)):  # texts and the parameters of codes alternate
        if number % 2:  # a code adds to those before it, unless it is a reset (0); later ones win, so old ones are cut
            codes = f"{codes[-100:]};{part}".lstrip(";") if part.strip("0;:") else ""
        else:
            # A role that begins with `RAW` is painted with the codes after it.
            text.append((f"{RAW}{codes}" if codes else "muted", printable(part)))
    return [row for row in lines_of(text) if plain(row).strip()][:MAX_CUSTOM_ROWS]


def _figures(status: Status) -> Iterator[tuple[str, str]]:
    """Yield the figures of the status line with their roles, the most important first."""
    use = status.use
    if use.window and use.tokens:
        yield "warning" if use.share >= 0.8 else "muted", f"{use.share:.0%} context"
    elif use.tokens:
        yield "muted", f"{use.tokens / 1000:.1f}k tokens" if use.tokens >= 1000 else f"{use.tokens} tokens"
    if use.cost_usd or use.budget_usd:
        spent = "$?" if use.cost_usd is None else f"${use.cost_usd:.2f}"
        yield "muted", spent + (f" of ${use.budget_usd:.2f}" if use.budget_usd else "")
    if use.cold_usd and not status.is_busy:
        yield "warning", f"cache expired: ${use.cold_usd:.2f} to continue"
    if status.jobs:
        yield "accent", f"{status.jobs} job{'s' if status.jobs > 1 else ''}"
    if status.model:
        yield "muted", short_model(status.model) + (f" {status.effort}" if status.effort else "")
    yield "muted", status.place.branch


def short_model(name: str) -> str:
    """Return a model's name without its provider; for a model file, only the file's name."""
    model = name.partition("/")[2] or name
    return model.rpartition("/")[2] if model.endswith((".gguf", ".jsonl")) else model


class StatusCommand:
    """Runs the person's command whenever the figures have changed; `rows` are the first lines of its last output."""

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        draw_soon: Callable[[], None],
        encode: Callable[[Status], bytes],
    ) -> None:
        self._command, self._environment = command.strip(), environment
        self._draw_soon, self._encode = draw_soon, encode
        self._status: Status | None = None  # the figures of the newest run
        self._running: asyncio.Task[None] | None = None
        self.rows: list[Row] = []

    def refresh(self, status: Status) -> None:
        """Run the command for these figures, unless it has already run for them or is running."""
        if self._command and status != self._status and (self._running is None or self._running.done()):
            self._status = status
            self._running = asyncio.create_task(self.run(status))

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def run(self, status: Status) -> None:
        """Run the command once, and show its output; a command that failed shows nothing."""
        try:
            end = await run_short_program(
                ("/bin/sh", "-c", self._command),
                timeout_s=COMMAND_TIMEOUT_S,
                max_bytes=MAX_OUTPUT_BYTES,
                environment=self._environment,
                stdin=self._encode(status),
            )
            output = end.stdout.decode(errors="replace") if end.exit_code == 0 else ""
        except OSError:  # there is no shell; the next change of the figures tries again
            output = ""
        self.rows = coloured_rows(output)
        self._draw_soon()


class SessionStatus:
    """The `status` of one session; the terminal is drawn again when a figure changes."""

    def __init__(self, opener: TerminalOpener, terminal: TerminalActions, view: TurnView) -> None:
        self._opener, self._terminal, self._view = opener, terminal, view
        self._reported_jobs: set[str] = set()  # ids of jobs whose end was printed
        self.status = Status()
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, session: Session) -> None:
        self._session = session
        self._reported_jobs.clear()
        self.refresh()

    def refresh(self) -> None:
        """Read all figures again, and once more when jobs may have ended or the provider's cache has expired."""
        if self._session is None:
            return
        snapshot = self._session.snapshot()
        reply = snapshot.conversation.last_reply
        cache_lives_s = math.inf  # the provider forgets a long conversation some time after its last reply
        if reply is not None and snapshot.context_tokens >= LONG_CONTEXT_TOKENS:
            cache_lives_s = reply.time + TIME_TO_LIVE_S - time.time()
        before, self.status = self.status, self._status_of(snapshot, is_cold=cache_lives_s <= 0)
        if self.status != before:
            self._terminal.draw_soon()
        self.stop_timer()
        wait_s = cache_lives_s + 1 if cache_lives_s > 0 else math.inf  # no check once the cache has expired
        if self._print_job_ends(snapshot) or self.status.jobs:  # an end must be printed later, or jobs still run
            wait_s = JOB_CHECK_S
        if wait_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.refresh)

    def _print_job_ends(self, snapshot: SessionSnapshot) -> bool:
        """Print the ends of jobs; return True if one must be printed later."""
        jobs = snapshot.workspace.sandbox.jobs.list() if snapshot.workspace.is_open() else ()
        ended = [job for job in jobs if not job.is_running and job.id not in self._reported_jobs]
        self._reported_jobs |= {job.id for job in ended if self._view.print_job_end(job)}
        return any(job.id not in self._reported_jobs for job in ended)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _status_of(self, snapshot: SessionSnapshot, *, is_cold: bool) -> Status:
        """Return the figures; if the cache `is_cold`, with the price of reading the conversation without it."""
        info, tokens, cold_usd = self._opener.model_info(snapshot.model), snapshot.context_tokens, None
        if is_cold and info.prices is not None and info.prices.cache_read is not None:
            usd_per_token, _ = info.prices.max_rates(tokens)
            cold_usd = tokens * usd_per_token
        cwd = os.fsencode(snapshot.workspace.cwd).decode(errors="replace")
        budget = snapshot.max_budget_usd
        return Status(
            model=info.name,
            mode=snapshot.mode,
            effort=snapshot.effort or "",
            use=SessionUse(
                tokens=tokens, window=info.window, cost_usd=snapshot.cost_usd, budget_usd=budget, cold_usd=cold_usd
            ),
            place=SessionPlace(snapshot.id, cwd, git_branch(self._opener.root) or ""),
            jobs=len(snapshot.workspace.running_jobs()),
            is_busy=self._session is not None and self._session.is_busy,
        )
