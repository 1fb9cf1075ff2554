"""Writes a stored session as a document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agentcli.agent.masking import Mask
from agentcli.app import Builder
from agentcli.cli.output import warn
from agentcli.cli.subcommands.sessions.changing import SessionId
from agentcli.cli.subcommands.sessions.store import with_store
from agentcli.cli.subcommands.shared import configuration, wait_for
from agentcli.errors import UserError
from agentcli.frontends.export.documents import Form, document, form_of
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.settings.files import replace_file
from agentcli.settings.load import Config


def export(
    session_id: SessionId,
    format: Annotated[
        Form | None, typer.Option("--format", help="One of md, json, html; else as the file's ending says.")
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="In place of stdout.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Leave secrets as they are.")] = False,
) -> None:
    """Write a session as a document. Secrets are masked."""
    text, places = wait_for(_written(session_id, format or form_of(output), raw))
    if output:
        _write(Path(output), text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="replace"))
    if places:
        warn(f"masked what looks like a secret in {places} place{'s' * (places != 1)} (--raw leaves it).")


async def _written(session_id: str, form: Form, raw: bool) -> tuple[str, int]:
    config = configuration()
    info, entries = await with_store(lambda store: store.load(session_id))
    return document(form, info, entries, None if raw else await _mask(config))


async def _mask(config: Config) -> Mask | None:
    """What masks the output of tools in this folder."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    try:
        workspace = builder.workspace()
        services = builder.session_calls(builder.tool_registry(), workspace).services
        await services.know_secrets()
        await workspace.sandbox.aclose()
        return services.mask
    finally:
        await builder.aclose()


def _write(file: Path, text: str) -> None:
    try:
        replace_file(file, text.encode(errors="replace"), mode=0o644)
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}.") from error
