"""`agentcli eval`: let a model do tasks, and say how well it did."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from agentcli.cli.options import text_or_file
from agentcli.cli.output import echo, print_table, warn
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
from agentcli.evals.runs import LEVEL, Comparison, Engine, Pair, RunFailed, compare, finish_run
from agentcli.evals.store import About, Attempted, EvalRun, EvalStore, Outcome, PlannedTask, Variant, outcome_line
from agentcli.evals.task import BUNDLED, Task, find_tasks, swe_bench_tasks
from agentcli.frontends.export.markdown import money, when
from agentcli.models.choice import Models
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
    model: Annotated[str, typer.Option("-m", "--model", help="PROVIDER/MODEL, or scripted/reference|nothing.")] = "",
    samples: Annotated[int, typer.Option(min=1, max=1_000, help="Attempts at each task.")] = 1,
    parallel: Annotated[int | None, typer.Option(min=1, max=1_000, help="Attempts at a time.")] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Where attempts are made.")] = "local",
    folder: Annotated[Path, typer.Option("--tasks", help="A folder of tasks, or SWE-bench's JSONL file.")] = BUNDLED,
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
    time_limit: Annotated[float | None, typer.Option(min=0.1, help="Seconds an attempt; else each task's.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings over the tasks' own, TOML or JSON.")] = None,
    json: AsJson = False,
) -> None:
    """Let a model attempt tasks, and store the outcomes. An unfinished run of the same arguments is continued."""
    config = configuration()
    append = text_or_file("--append-system-prompt", append_system_prompt, append_system_prompt_file)
    variant = Variant(
        model=model or wait_for(Models(config).default()),
        system_prompt=text_or_file("--system-prompt", system_prompt, system_prompt_file),
        append_system_prompt=append or "",
        skills=tuple(map(str, skills or ())),
        time_s=time_limit,
        settings=dict(read_layer(settings).values) if settings else {},
    )
    found = _tasks(folder, tasks or [], repositories)
    planned = tuple(PlannedTask(task.name, task.version, task.title, task.difficulty) for task in found)
    place = "" if folder == BUNDLED else str(folder.resolve())
    about = About(variant=variant, tasks=planned, samples=samples, tasks_folder=place, name=name, engine=engine)
    if parallel is None:
        parallel = 1 if variant.model.startswith("local/") else PARALLEL
    make_engine = partial(_engine, engine, _hidden(config, folder), variant, parallel)
    made = _finish_run(about, found, make_engine, parallel=parallel, is_new=new)
    if json:
        print_json(_as_result(made))
    else:
        echo(_summary(made))


def _finish_run(
    about: About, tasks: list[Task], make_engine: Callable[[], Engine], *, parallel: int, is_new: bool
) -> EvalRun:
    store = _store()
    try:
        begun = store.begin(about, is_new=is_new)
        with store.hold(begun):
            if begun.outcomes:
                warn(f"Continuing run {begun.id}: {len(begun.outcomes)} of {len(about.jobs)} attempts are made.")
            progress = LineProgress(len(about.jobs), begun.outcomes)
            work = finish_run(store, begun, tasks, make_engine(), parallel=parallel, progress=progress)
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


def _engine(name: str, config: Config, variant: Variant, parallel: int) -> Engine:
    from agentcli.evals.attempt import LocalEngine, RayEngine

    return RayEngine(config, variant, parallel=parallel) if name == "ray" else LocalEngine(config, variant)


def _as_result(made: EvalRun) -> dict[str, Any]:
    """Return the object that `eval run --json` and `eval show --json` print."""
    return {
        "run_id": made.id,
        "passed": made.passed,
        "total": len(made.about.jobs),
        "model": made.about.variant.model,
        "finished": made.ended is not None,
        "about": to_builtins(made.about),
        "tasks": [outcome.as_row() for outcome in made.outcomes],
    }


def _summary(made: EvalRun) -> str:
    seconds = sum(outcome.spent.seconds for outcome in made.outcomes)
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
        if outcome.check.reason:
            echo("\n".join(f"    {line}" for line in outcome.check.reason.splitlines()[-5:]))


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
    output: Annotated[Path | None, typer.Option("-o", "--output", help="An .html or .md file; else Markdown.")] = None,
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
        raise UsageError(f"No form is known by the ending of {output.name}: there is .html and .md.")
    write_file(output, text)
    echo(f"Written: {output}")


MAX_COLUMNS = 78  # of the line that is redrawn


class LineProgress:
    """Prints a line on stderr for each attempt that ends; on a terminal a last line, redrawn, names what runs."""

    def __init__(self, total: int, made: Sequence[Outcome]) -> None:
        self._total = total
        self._made = [*made]
        self._running: list[tuple[str, int]] = []
        self._draws = sys.stderr.isatty()

    def started(self, task: str, sample: int) -> None:
        self._running.append((task, sample))
        self._draw()

    def finished(self, attempted: Attempted) -> None:
        outcome, failure = attempted.outcome, attempted.failure
        self._running.remove((outcome.task, outcome.sample))
        if not failure:
            self._made.append(outcome)
        sign = "!" if failure else "✓" if outcome.passed else "✗"
        why = failure or outcome.check.reason or outcome.error
        reason = f": {why.splitlines()[0][:100]}" if why and not outcome.passed else ""
        attempt = f"{outcome.task} #{outcome.sample} ({outcome.spent.seconds:.1f} s)"
        self.clear()
        print(f"{sign} {len(self._made)}/{self._total} {attempt}{reason}", file=sys.stderr)
        self._draw()

    def _draw(self) -> None:
        if self._draws and self._running:
            passed = sum(outcome.passed for outcome in self._made)
            names = ", ".join(name for name, _ in self._running)
            sys.stderr.write(f"\r\x1b[K{f'{passed} passed of {len(self._made)}; now {names}'[:MAX_COLUMNS]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._draws:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    pairs = [(one, {"samples": [len(one.a), len(one.b)], "pass_rate": one.pass_rates}) for one in found.pairs]
    return {
        "a": found.a.id,
        "b": found.b.id,
        "worse_beyond_chance": found.is_worse,
        **{key: getattr(found, key) for key in ("score_difference", "chance", "better", "worse", "left_out")},
        "tasks": [{"task": one.task, **counted, "difference": one.difference} for one, counted in pairs],
        "measures": [{"name": name, "a": a, "b": b} for name, (a, b) in found.measures.items()],
    }


def print_comparison(found: Comparison) -> None:
    a, b = found.a, found.b
    echo(f"A  {_named(a)}\nB  {_named(b)}")
    for line in _differences(a, b):
        echo(f"   {line}")
    echo("")
    print_table(("task", "A", "B", "score", ""), [_row(pair) for pair in found.pairs], numeric={"A", "B", "score"})
    echo("")
    rows = [(name, *(_number(value) for value in (a, b, b - a))) for name, (a, b) in found.measures.items()]
    print_table(("per task", "A", "B", "B - A"), rows, numeric={"A", "B", "B - A"})
    echo("")
    if found.left_out:
        echo(f"Left out, because only one run has them or their versions differ: {', '.join(found.left_out)}.")
    if found.better:
        echo(f"Better: {', '.join(found.better)}.")
    if found.worse:
        echo(f"Worse (regressions): {', '.join(found.worse)}.")
    chance = "less than 0.1 %" if found.chance < 0.001 else f"{found.chance:.1%}"
    told = f"{found.score_difference:+.3f}; chance gives as much in {chance} of cases"
    if found.is_worse:
        echo(f"B is worse beyond chance: mean score {told}, below {LEVEL:.0%}.")
    elif found.score_difference < 0:
        echo(f"B scores lower, which may be chance: mean score {told}. More --samples tell more.")
    else:
        echo(f"B is not worse: mean score {found.score_difference:+.3f}.")


def _named(run: EvalRun) -> str:
    name = f" ({run.about.name})" if run.about.name else ""
    state = "" if run.ended else ", unfinished"
    return f"{run.id}{name}: {run.passed} of {len(run.outcomes)} passed, {run.about.variant.model}{state}"


def _differences(a: EvalRun, b: EvalRun) -> Iterator[str]:
    """Name the differences of the runs besides their results."""
    for field in a.about.variant.__struct_fields__:
        before, after = (getattr(run.about.variant, field) for run in (a, b))
        if before != after:
            yield f"differs: {field.replace('_', ' ')}"
    if a.about.agentcli != b.about.agentcli:
        yield f"differs: agentcli {a.about.agentcli} and {b.about.agentcli}"
    if _prefixes(a).isdisjoint(_prefixes(b)):
        yield "differs: the tools or the system text that the model was given"


def _prefixes(run: EvalRun) -> set[str]:
    return {outcome.work.prefix for outcome in run.outcomes if outcome.work.prefix}


def _row(pair: Pair) -> tuple[str, ...]:
    before, after = pair.pass_rates
    sign = "worse" if pair.difference < 0 else "better" if pair.difference > 0 else ""
    rates = [f"{rate * len(side):.0f}/{len(side)}" for rate, side in ((before, pair.a), (after, pair.b))]
    return pair.task, *rates, f"{pair.difference:+.2f}", sign


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
