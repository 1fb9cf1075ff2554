"""Helpers for subcommands: typer apps, the configuration, the stored sessions, and answers as JSON or text."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from agentcli.cli.output import Row, echo, print_table, warn
from agentcli.errors import UserError
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config, load_config

if TYPE_CHECKING:
    from agentcli.infra.sessions.sqlite import SqliteSessions

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def make_app(help: str = "") -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=bool(help), add_completion=False, rich_markup_mode=None)


def single_command(command: Callable[..., None]) -> typer.Typer:
    """Return an app that has only this command; the command's docstring is its help."""
    app = make_app()
    app.command()(command)
    return app


def run_app(app: typer.Typer, name: str, arguments: list[str]) -> int:
    try:
        app(args=arguments, prog_name=f"agentcli {name}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def configuration(*, warns: bool = False) -> Config:
    """Load the settings for this directory; `warns` prints their notices. Raises `ConfigError`."""
    config = load_config(current_folder())
    for notice in config.notices if warns else ():
        warn(notice)
    return config


def in_store(work: Callable[["SqliteSessions"], Awaitable[T]], file: Path | None = None) -> T:
    """Open the stored sessions, or those in `file`, run `work` on them, and return its result."""
    from agentcli.infra.sessions.sqlite import SqliteSessions

    async def run() -> T:
        store = SqliteSessions(file or configuration().paths.sessions, on_notice=warn)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


class Interrupted(UserError):
    """A signal ended the work cleanly: no part of it is still running."""

    def __init__(self, number: int) -> None:
        super().__init__("Interrupted. To continue this run, repeat the command.")
        self.exit_code = 128 + number


async def until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work`; a signal cancels it. Raises `Interrupted` once the cancelled work has ended."""
    from agentcli.frontends.run_end import interrupt_on_signals  # few subcommands need it

    running = asyncio.ensure_future(work)
    with interrupt_on_signals(running.cancel) as received:
        try:
            return await running
        except asyncio.CancelledError:
            if not received:
                raise
            raise Interrupted(received["signal"]) from None


def print_answer(data: Any, text: str, *, as_json: bool) -> None:
    print_json(data) if as_json else echo(text)


def print_list(
    data: Sequence[Any],
    headings: Row,
    rows: Sequence[Row],
    *,
    as_json: bool,
    numeric: Collection[str] = (),
    empty: str = "",
) -> None:
    """Print `data` as JSON for programs, or `rows` as a table for people (`empty` if there are none)."""
    print_json(data) if as_json else print_table(headings, rows, numeric=numeric, empty=empty)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, always in UTF-8."""
    sys.stdout.flush()  # buffered text must come first
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
