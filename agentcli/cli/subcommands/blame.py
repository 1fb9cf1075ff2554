"""`agentcli blame`: shows which call of which session wrote each line of a file."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.blame import BlamedLine, blame
from agentcli.cli.output import echo
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for, with_store
from agentcli.conversation.titles import shortened
from agentcli.infra.changes.objects import Objects
from agentcli.settings.paths import current_folder

_MAX_PROMPT_CHARS = 30
_NOBODY = dict.fromkeys(("session_id", "entry_id", "call_id", "tool", "model", "prompt", "at"))

app = make_app("Show which call of which session wrote each line of a file.", needs_command=False)


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="PATH[:LINE]", help="A file, or one line of it.")], json: AsJson = False
) -> None:
    """Show who wrote each line: session, turn, prompt, call and model, by edit or by shell."""
    paths = configuration().paths
    find, read = lambda name: (current_folder() / name).resolve(), Objects(paths.state / "checkpoints").get
    lines = wait_for(with_store(lambda store: blame(file, find, store, read), paths.sessions))
    if json:
        print_json(list(map(_row, lines)))
        return
    for line in lines:
        echo(_format_line(line, width=len(str(lines[-1].line))))


def _row(line: BlamedLine) -> dict[str, Any]:
    author = _NOBODY if line.author is None else msgspec.to_builtins(line.author)
    return {"line": line.line, "text": line.text, **author}


def _format_line(line: BlamedLine, *, width: int) -> str:
    who = ""
    if (author := line.author) is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(author.at))
        prompt = shortened(author.prompt, _MAX_PROMPT_CHARS)
        who = f"{author.session_id[:13]} {when} {author.tool:<10} {prompt}"
    return f"{who:<{13 + 1 + 16 + 1 + 10 + 1 + _MAX_PROMPT_CHARS}}  {line.line:>{width}}  {line.text}"
