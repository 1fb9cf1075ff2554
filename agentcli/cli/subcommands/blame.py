"""`agentcli blame`: shows which call of which session wrote each line of a file."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.blame import BlamedLine, blame, split_line
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for
from agentcli.conversation.titles import shortened
from agentcli.errors import UsageError
from agentcli.infra.changes.objects import Objects
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder

_LONGEST_PROMPT = 30
_NOBODY = msgspec.json.decode(
    b'{"session_id":null,"entry_id":null,"call_id":null,"tool":null,"model":null,"prompt":null,"at":null}'
)

app = make_app("Show which call of which session wrote each line of a file.", needs_command=False)


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="PATH[:LINE]", help="A file, or one line of it.")], json: AsJson = False
) -> None:
    """Show who wrote each line: session, turn, prompt, call and model, by edit or by shell."""
    name, line = split_line(file, os.path.lexists)
    lines = wait_for(_blamed(configuration(), name))
    if line is not None:
        if line > len(lines):
            raise UsageError(f"{name} has {len(lines)} lines: there is no line {line}.")
        lines = [lines[line - 1]]
    if json:
        print_json(list(map(_row, lines)))
        return
    for one in lines:
        tell(_told(one, width=len(str(len(lines) if line is None else line))))


async def _blamed(config: Config, name: str) -> list[BlamedLine]:
    store = SqliteSessions(config.paths.sessions, on_notice=warn)
    try:
        return await blame((current_folder() / name).resolve(), store, Objects(config.paths.state / "checkpoints").get)
    finally:
        await store.close()


def _row(line: BlamedLine) -> dict[str, Any]:
    author = _NOBODY if line.author is None else msgspec.to_builtins(line.author)
    return {"line": line.line, "text": line.text, **author}


def _told(line: BlamedLine, *, width: int) -> str:
    who = ""
    if (author := line.author) is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(author.at))
        prompt = shortened(author.prompt, _LONGEST_PROMPT)
        who = f"{author.session_id[:13]} {when} {author.tool:<10} {prompt}"
    return f"{who:<{13 + 1 + 16 + 1 + 10 + 1 + _LONGEST_PROMPT}}  {line.line:>{width}}  {line.text}"
