"""`agentcli eval`: let a model do tasks, and say how well it did."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from agentcli.cli.options import text_or_file
from agentcli.cli.output import echo, print_table, warn
from agentcli.cli.subcommands.eval_output import LineProgress, comparison_as_json, print_comparison
from agentcli.cli.subcommands.shared import (
    AsJson,
    Interrupted,
    configuration,
    make_app,
    print_json,
    run_app,
    until_signal,
    wait_for,
)
from agentcli.errors import UsageError, UserError
from agentcli.evals.comparison import compare
from agentcli.evals.outcome import Variant, outcome_line
from agentcli.evals.run import Engine, RunFailed, carry_out
from agentcli.evals.store import About, EvalRun, EvalStore, PlannedTask
from agentcli.evals.swe_bench import swe_bench_tasks
from agentcli.evals.task import BUNDLED, Task, find_tasks
from agentcli.frontends.export.markdown import money, when
from agentcli.settings.load import Config, read_layer

PARALLEL = 4

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of it, or its name.")]


app = make_app("Let a model do tasks, and see how well it did.")


def run(arguments: list[str]) -> int:
    try:
        return run_app(app, "eval", arguments)
    except (RunFailed, Interrupted) as error:
        warn(str(error))
        return error.exit_code
    except UserError as error:  # 1 says that a run is worse than another
        warn(str(error))
        return UsageError.exit_code


@app.command("run")
def run_tasks(
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Their names; none: all.")] = None,
    *,
    model: Annotated[
        str, typer.Option("-m", "--model", help="PROVIDER/MODEL, scripted/reference or scripted/nothing.")
    ] = "",
    samples: Annotated[int, typer.Option(min=1, max=1_000, help="Attempts at each task.")] = 1,
    parallel: Annotated[int | None, typer.Option(min=1, max=1_000, help="Attempts at a time.")] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Where attempts are made.")] = "local",
    folder: Annotated[
        Path, typer.Option("--tasks", help="A folder of tasks, or a JSONL file of SWE-bench's form.")
    ] = BUNDLED,
    repositories: Annotated[Path | None, typer.Option("--repos", help="The clones that a JSONL file names.")] = None,
    name: Annotated[str, typer.Option("-n", "--name", help="A name for the run.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Do not continue an unfinished run.")] = False,
    system_prompt: Annotated[str | None, typer.Option(help="In place of the system text.")] = None,
    system_prompt_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    append_system_prompt: Annotated[str | None, typer.Option(help="After the system text.")] = None,
    append_system_prompt_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    skills: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="A folder of skills; may be repeated."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for each attempt; else each task's own.")
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings over the tasks' own, TOML or JSON.")] = None,
    json: AsJson = False,
) -> None:
    """Let a model attempt tasks, and store the outcomes. An unfinished run of the same arguments is continued."""
    config = configuration()
    texts = Namespace(system_prompt=system_prompt, append_system_prompt=append_system_prompt)
    texts.system_prompt_file, texts.append_system_prompt_file = system_prompt_file, append_system_prompt_file
    variant = Variant(
        model=model or wait_for(_default_model(config)),
        system_prompt=text_or_file(texts, "system-prompt"),
        append_system_prompt=text_or_file(texts, "append-system-prompt") or "",
        skills=tuple(map(str, skills or ())),
        time_s=time_limit,
        settings=dict(read_layer(settings).values) if settings else {},
    )
    found = _tasks(folder, tasks or [], repositories)
    planned = tuple(PlannedTask(task.name, task.version, task.title, task.difficulty) for task in found)
    place = "" if folder == BUNDLED else str(folder.resolve())
    about = About(variant, planned, samples, place, name=name, engine=engine)
    if parallel is None:
        parallel = 1 if variant.model.startswith("local/") else PARALLEL
    make_engine = partial(_engine, engine, _hidden(config, folder), variant, parallel)
    made = _carry_out(about, found, make_engine, parallel=parallel, is_new=new)
    if json:
        print_json(_as_result(made))
    else:
        echo(_summary(made))


def _carry_out(
    about: About, tasks: list[Task], make_engine: Callable[[], Engine], *, parallel: int, is_new: bool
) -> EvalRun:
    store = _store()
    try:
        begun = store.begin(about, is_new=is_new)
        with store.hold(begun):
            if begun.outcomes:
                warn(f"Continuing run {begun.id}: {len(begun.outcomes)} of {len(about.jobs)} attempts are made.")
            progress = LineProgress(len(about.jobs), begun.outcomes)
            work = carry_out(store, begun, tasks, make_engine(), parallel=parallel, progress=progress)
            try:
                return wait_for(until_signal(work))
            finally:
                progress.clear()
    finally:
        store.close()


def _hidden(config: Config, tasks: Path) -> Config:
    """Return the configuration with the tasks out of the agent's reach: they hold solutions."""
    sandbox = config.settings.sandbox
    sandbox = replace(sandbox, masked=(*sandbox.masked, str(tasks.resolve())))
    return replace(config, settings=replace(config.settings, sandbox=sandbox))


def _tasks(folder: Path, names: list[str], repositories: Path | None) -> list[Task]:
    if not folder.is_file():
        return list(find_tasks(folder, names))
    if repositories is None:
        raise UsageError(f"{folder} needs --repos: the folder with clones of the repositories that it names.")
    # A folder for each file, because two files may hold different instances of the same name.
    cached = configuration().paths.cache / "swe-bench" / sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
    return list(swe_bench_tasks(folder, repositories, cached, names))


async def _default_model(config: Config) -> str:
    from agentcli.models.choice import Models

    async with aclosing(Models(config)) as models:
        return await models.default()


def _engine(name: str, config: Config, variant: Variant, parallel: int) -> Engine:
    if name == "ray":
        from agentcli.evals.ray_engine import RayEngine

        return RayEngine(config, variant, parallel=parallel)
    from agentcli.evals.attempt import LocalEngine

    return LocalEngine(config, variant)


def _as_result(made: EvalRun) -> dict[str, Any]:
    """Return the object that `eval run --json` and `eval show --json` print."""
    return {
        "run_id": made.id,
        "passed": made.passed,
        "total": len(made.about.jobs),
        "model": made.about.variant.model,
        "finished": made.ended is not None,
        "about": to_builtins(made.about),
        "tasks": [to_builtins(outcome) for outcome in made.outcomes],
    }


def _summary(made: EvalRun) -> str:
    seconds = sum(outcome.seconds for outcome in made.outcomes)
    return (
        f"Run {made.id}: {made.passed} of {len(made.about.jobs)} passed with {made.about.variant.model}, "
        f"cost {money(made.cost_usd)}, {seconds:,.0f} s of work."
    )


def _store() -> EvalStore:
    return EvalStore(configuration().paths.state / "evals.db")


@app.command("list")
def list_runs(json: AsJson = False) -> None:
    """The runs there are, the newest first."""
    runs = _store().runs()
    if json:
        print_json([{key: value for key, value in _as_result(one).items() if key != "tasks"} for one in runs])
        return
    rows = []
    for one in runs:
        passed, state = f"{one.passed}/{len(one.about.jobs)}", "" if one.ended else "unfinished"
        about = one.id, one.about.name, when(one.created)
        rows.append((*about, passed, money(one.cost_usd), state, one.about.variant.model))
    headings = ("run", "name", "begun", "passed", "cost", "state", "model")
    print_table(headings, rows, empty="There are no runs yet: agentcli eval run")


@app.command()
def show(run_name: RunName, json: AsJson = False) -> None:
    """A run, attempt by attempt."""
    found = _store().find(run_name)
    if json:
        print_json(_as_result(found))
        return
    echo(_summary(found) if found.ended else f"{_summary(found)} It is unfinished.")
    for outcome in found.outcomes:
        echo(outcome_line(outcome))
        if outcome.reason:
            echo("\n".join(f"    {line}" for line in outcome.reason.splitlines()[-5:]))


@app.command("compare")
def compare_runs(
    a: Annotated[str, typer.Argument(metavar="A", help="The run to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run that may be better or worse.")],
    json: AsJson = False,
) -> None:
    """Say what became better and what worse from A to B; exits with 1 when B is worse beyond chance."""
    store = _store()
    found = compare(store.find(a), store.find(b))
    if json:
        print_json(comparison_as_json(found))
    else:
        print_comparison(found)
    raise typer.Exit(int(found.is_worse))


@app.command()
def report(
    run_name: RunName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file: .html or .md; none: Markdown here.")
    ] = None,
    baseline: Annotated[str, typer.Option(help="A run to show beside it.")] = "",
) -> None:
    """Write a run as an HTML page with a chart and its transcripts, or as Markdown for a pull request."""
    # It takes 40 ms to import, which no other command needs.
    from agentcli.evals.report import as_markdown, as_page, write_file, write_transcripts

    store = _store()
    found, before = store.find(run_name), store.find(baseline) if baseline else None
    if output is None or output.suffix.lower() in (".md", ".markdown"):
        text = as_markdown(found, before)
        if output is None:
            echo(text)
            return
    elif output.suffix.lower() in (".html", ".htm"):
        text = as_page(found, write_transcripts(store, found, output), before)
    else:
        raise UsageError(
            f"No form is known by the ending {output.suffix or 'of ' + output.name}: there is .html and .md."
        )
    write_file(output, text)
    echo(f"Written: {output}")
