"""`agentcli demo` shows the main job on a sample repository, with a scripted model and the real tools."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from agentcli.agent.events import TurnFailed
from agentcli.cli.subcommands.shared import single_command
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import UserError
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.plain import LinearOutput
from agentcli.frontends.terminal.text.theme import Theme, palette_for
from agentcli.library.agent import Agent
from agentcli.library.options import AgentOptions

_PROMPTS = (
    "Search the project for with_tax. Where is it used, and what does it do?",
    "with_tax in price.py subtracts the tax from the net amount. It must add it. Fix it.",
)


@single_command
def demo_app(model: Annotated[str, typer.Option("-m", "--model", help="Use this model, not a script.")] = "") -> None:
    """Ask a question and make a small change in a sample repository, with real tools. Your files are not touched."""
    with tempfile.TemporaryDirectory(prefix="agentcli-demo-") as folder:
        repository = Path(folder) / "shop"
        make_sample(repository)
        raise typer.Exit(asyncio.run(_tour(repository, model)))


def make_sample(repository: Path) -> None:
    sample = files("agentcli.cli.subcommands").joinpath("demo_sample")
    repository.mkdir(parents=True)
    for name in ("price.py", "test_price.py", "README.md"):
        (repository / name).write_text(sample.joinpath(f"{name}.txt").read_text("utf-8"), "utf-8")
    with suppress(FileNotFoundError):  # the tour works without git
        subprocess.run(["git", "init", "-q", str(repository)], check=False, stdin=subprocess.DEVNULL)


async def _tour(repository: Path, model: str) -> int:
    """Show the turns of all prompts, and run the sample's test; return 0 if it passes, else 1. Raises `UserError`."""
    is_terminal = sys.stdout.isatty()
    output = LinearOutput(sys.stdout, Theme(palette_for("auto", os.environ)) if is_terminal else None)
    if is_terminal:
        output.columns = shutil.get_terminal_size().columns
    view = TurnView(output, unfold_key="")  # no key shows cut text in full, because the tour takes no input
    script = files("agentcli.cli.subcommands").joinpath("demo_sample", "script.jsonl")
    kind = model or "scripted (SCRIPTED: its answers were written in advance; tools, files and tests are real)"
    view.print_line(f"agentcli demo — model: {kind}", "bold")
    view.print_line(f"Sample repository: {repository}\n", "muted")
    settings = {"permissions": {"allow": ["file_edit"]}}
    async with Agent(model or f"scripted/{script}", cwd=repository, options=AgentOptions(settings=settings)) as agent:
        session = await agent.session()
        # A small model seldom reads files by itself, so it also gets those that are named without an @.
        is_small = session.runtime.models.info(session.snapshot().model).small
        for prompt in _PROMPTS:
            view.print_prompt(prompt)
            workspace = session.snapshot().workspace
            async for event in agent.stream(with_attachments(prompt, workspace, bare_names=is_small)):
                view.show(event)
                if isinstance(event, TurnFailed):
                    raise UserError("The tour stopped early.")
        return _run_sample_test(repository, view, model)


def _run_sample_test(repository: Path, view: TurnView, model: str) -> int:
    command = [sys.executable, "-m", "unittest", "-q"]
    tests = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if tests.returncode == 0:
        view.print_line("✓ The sample's test passes now: the change is correct.", "ok")
        return 0
    view.print_line(f"✗ The sample's test still fails:\n{tests.stderr.rstrip()}", "error")
    if model:
        view.print_line(f"{model} did not make the change. Try a larger model.", "warning")
    return 1
