"""`agentcli eval` runs a model on tasks, and shows, compares and reports the outcomes."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from agentcli.cli.options import text_or_file
from agentcli.cli.output import echo, print_table, warn
from agentcli.cli.subcommands import shared
from agentcli.errors import UsageError, UserError
from agentcli.evals.runs import LEVEL, Comparison, Pair, RunFailed, compare, finish_run
from agentcli.evals.store import EvalAttempt, EvalRun, EvalStore, PlannedTask, RunPlan, Variant, cost_of, outcome_line
from agentcli.evals.task import BUNDLED, Task, find_tasks, skill_tasks
from agentcli.frontends.export.markdown import format_cost, format_time
from agentcli.models.choice import Models
from agentcli.settings.load import Config, read_layer

if TYPE_CHECKING:
    from agentcli.evals.attempt import LocalEngine, RayEngine

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, its first letters, or its name.")]


app = shared.make_app("Run a model on tasks and measure how well it does.")


def run(arguments: list[str]) -> int:
    try:
        return shared.run_app(app, "eval", arguments)
    except UserError as error:
        warn(str(error))
        # A mistake in the arguments must not exit with 1, which means "B is worse" in `eval compare`.
        return error.exit_code if isinstance(error, RunFailed | shared.Interrupted) else UsageError.exit_code


@app.command("run")
def run_tasks(
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Task names (default: all).")] = None,
    *,
    model: Annotated[str, typer.Option("-m", "--model", help="PROVIDER/MODEL, or scripted/reference|nothing.")] = "",
    samples: Annotated[int, typer.Option(min=1, max=1_000, help="Attempts per task.")] = 1,
    parallel: Annotated[int | None, typer.Option(min=1, max=1_000, help="Attempts to run at the same time.")] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Where to run attempts.")] = "local",
    folder: Annotated[Path, typer.Option("--tasks", help="A folder of tasks.")] = BUNDLED,
    name: Annotated[str, typer.Option("-n", "--name", help="A name for the run.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Start a new run even if one is unfinished.")] = False,
    system_prompt: Annotated[str | None, typer.Option(help="Replace the system prompt.")] = None,
    system_prompt_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    append_system_prompt: Annotated[str | None, typer.Option(help="Add to the system prompt.")] = None,
    append_system_prompt_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    skills: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="A folder of skills; may be repeated."),
    ] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.1, help="Seconds per attempt, not the task's.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings that override the tasks', TOML or JSON.")] = None,
    json: shared.AsJson = False,
) -> None:
    """Run a model on tasks and store the results. Continues an unfinished run with the same arguments."""
    config = shared.configuration()
    variant = Variant(
        model=model or asyncio.run(Models(config).default()),
        system_prompt=text_or_file("--system-prompt", system_prompt, system_prompt_file),
        append_system_prompt=text_or_file("--append-system-prompt", append_system_prompt, append_system_prompt_file)
        or "",
        skills=tuple(map(str, skills or ())),
        time_s=time_limit,
        settings=dict(read_layer(settings).values) if settings else {},
    )
    chosen = find_tasks(folder, tasks or [])
    plan = RunPlan(
        variant=variant,
        tasks=_planned_tasks(chosen),
        samples=samples,
        name=name,
        engine=engine,
        tasks_folder="" if folder == BUNDLED else str(folder.resolve()),
    )
    run = _run_plan(plan, chosen, _without_tasks(config, folder), parallel=parallel, is_new=new)
    shared.print_answer(_run_object(run), _summary(run), as_json=json)


@app.command("skill")
def evaluate_skill(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, resolve_path=True, help="The skill's folder.")
    ],
    *,
    model: Annotated[str, typer.Option("-m", "--model", help="PROVIDER/MODEL.")] = "",
    judge: Annotated[str, typer.Option("--judge-model", help="The model that grades (default: the same).")] = "",
    samples: Annotated[int, typer.Option(min=1, max=1_000, help="Attempts per case, without and with it.")] = 3,
    parallel: Annotated[int | None, typer.Option(min=1, max=1_000, help="Attempts to run at the same time.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Start new runs even if some are unfinished.")] = False,
    json: shared.AsJson = False,
) -> None:
    """Run a skill's evals without and with it. Exits with 1 if answers are significantly worse with it."""
    config, runs = _without_tasks(shared.configuration(), folder / "evals"), []
    tasks, skills = skill_tasks(folder, config.paths.cache / "skill-evals")
    model = model or asyncio.run(Models(config).default())
    for name, skill_folders in (("without", ()), ("with", (str(skills),))):
        variant = Variant(model=model, judge=judge, skills=skill_folders)
        plan = RunPlan(variant=variant, tasks=_planned_tasks(tasks), samples=samples, name=f"{folder.name}-{name}")
        runs.append(_run_plan(plan, tasks, config, parallel=parallel, is_new=new))
    without_skill, with_skill = runs
    comparison = compare(without_skill, with_skill)
    reverse = compare(with_skill, without_skill)  # significantly worse without the skill: the skill helps
    if json:
        gain = {"skill": folder.name, "better_beyond_chance": reverse.is_worse, "chance_of_gain": reverse.chance}
        shared.print_json(gain | comparison_as_json(comparison))
    else:
        print_comparison(comparison)
        effect = f"helps (by chance in {reverse.chance:.1%} of cases)" if reverse.is_worse else "shows no certain gain"
        echo(f"{folder.name} {effect}. A is without it, B with it.")
    raise typer.Exit(int(comparison.is_worse))


def _planned_tasks(tasks: Sequence[Task]) -> tuple[PlannedTask, ...]:
    return tuple(PlannedTask(task.name, task.version, task.title, task.difficulty) for task in tasks)


def _run_plan(plan: RunPlan, tasks: Sequence[Task], config: Config, *, parallel: int | None, is_new: bool) -> EvalRun:
    if parallel is None:  # the embedded model answers one request at a time
        parallel = 1 if plan.variant.model.startswith("local/") else 4
    store, total = _store(), len(plan.attempts)
    try:
        run = store.begin_or_continue(plan, is_new=is_new)
        with store.lock(run):
            if run.outcomes:
                warn(f"Continuing run {run.id}: {len(run.outcomes)} of {total} attempts are done.")
            on_attempt = partial(_report_attempt, count(len(run.outcomes) + 1), total)
            engine = _engine(plan.engine, config, plan.variant, parallel)
            work = finish_run(store, run, tasks, engine, parallel=parallel, on_attempt=on_attempt)
            return asyncio.run(shared.until_signal(work))
    finally:
        store.close()


def _report_attempt(numbers: Iterator[int], total: int, attempt: EvalAttempt) -> None:
    """Print a line for an attempt that has ended. An attempt with a `failure` gets no number: it will be repeated."""
    outcome, failure = attempt.outcome, attempt.failure
    mark = "!" if failure else "✓" if outcome.passed else "✗"
    why = failure or outcome.check.reason or outcome.error
    reason = f": {why.splitlines()[0][:100]}" if why and not outcome.passed else ""
    number = "" if failure else f" {next(numbers)}/{total}"
    print(f"{mark}{number} {outcome.task} #{outcome.sample} ({outcome.spent.seconds:.1f} s){reason}", file=sys.stderr)


def _without_tasks(config: Config, tasks: Path) -> Config:
    """Return the configuration with the tasks out of the agent's reach, because they contain solutions."""
    sandbox = config.settings.sandbox
    sandbox = msgspec.structs.replace(sandbox, masked=(*sandbox.masked, str(tasks.resolve())))
    return msgspec.structs.replace(config, settings=msgspec.structs.replace(config.settings, sandbox=sandbox))


def _engine(name: str, config: Config, variant: Variant, parallel: int) -> "LocalEngine | RayEngine":
    from agentcli.evals.attempt import LocalEngine, RayEngine

    return RayEngine(config, variant, parallel=parallel) if name == "ray" else LocalEngine(config, variant)


def _run_object(run: EvalRun) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "passed": run.passed,
        "total": len(run.plan.attempts),
        "model": run.plan.variant.model,
        "finished": run.ended is not None,
        "about": msgspec.to_builtins(run.plan),
        "tasks": [outcome.as_row() for outcome in run.outcomes],
    }


def _summary(run: EvalRun) -> str:
    seconds = sum(outcome.spent.seconds for outcome in run.outcomes)
    return (
        f"Run {run.id}: {run.passed} of {len(run.plan.attempts)} passed with {run.plan.variant.model}, "
        f"cost {format_cost(cost_of(run.outcomes))}, {seconds:,.0f} s of work."
        f"{'' if run.ended else ' The run is unfinished.'}"
    )


def _store() -> EvalStore:
    return EvalStore(shared.configuration().paths.state / "evals.db")


@app.command("list")
def list_runs(json: shared.AsJson = False) -> None:
    """List the runs, newest first."""
    runs = _store().runs()
    shared.print_list(
        [{key: value for key, value in _run_object(run).items() if key != "tasks"} for run in runs],
        ("run", "name", "begun", "passed", "cost", "state", "model"),
        list(map(_run_row, runs)),
        as_json=json,
        empty="There are no runs yet. To start one: agentcli eval run",
    )


def _run_row(run: EvalRun) -> tuple[str, ...]:
    plan, cost = run.plan, format_cost(cost_of(run.outcomes))
    passed, state = f"{run.passed}/{len(plan.attempts)}", "" if run.ended else "unfinished"
    return run.id, plan.name, format_time(run.created), passed, cost, state, plan.variant.model


@app.command()
def show(run_name: RunName, json: shared.AsJson = False) -> None:
    """Show the attempts of a run."""
    run = _store().find(run_name)
    lines = [_summary(run)]
    for outcome in run.outcomes:
        lines += [outcome_line(outcome), *(f"    {line}" for line in outcome.check.reason.splitlines()[-5:])]
    shared.print_answer(_run_object(run), "\n".join(lines), as_json=json)


@app.command("compare")
def compare_runs(
    a: Annotated[str, typer.Argument(metavar="A", help="The earlier run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The later run.")],
    json: shared.AsJson = False,
) -> None:
    """Show what is better and worse in B than in A. Exits with 1 if B is significantly worse."""
    store = _store()
    found = compare(store.find(a), store.find(b))
    shared.print_json(comparison_as_json(found)) if json else print_comparison(found)
    raise typer.Exit(int(found.is_worse))


@app.command()
def report(
    run_name: RunName,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="An .html or .md file, not stdout.")] = None,
) -> None:
    """Write a run as an HTML page with its transcripts, or as Markdown for a pull request."""
    from agentcli.evals.report import as_markdown, as_page, write_file, write_transcripts  # 40 ms

    store = _store()
    found = store.find(run_name)
    if output is None or output.suffix.lower() in (".md", ".markdown"):
        text = as_markdown(found)
        if output is None:
            echo(text)
            return
    elif output.suffix.lower() in (".html", ".htm"):
        text = as_page(found, write_transcripts(store, found, output))
    else:
        raise UsageError(f"Unknown format {output.name}. Use a file that ends in .html or .md.")
    write_file(output, text)
    echo(f"Written: {output}")


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    same_names = ("score_difference", "chance", "better", "worse", "left_out")
    return {
        "a": found.a.id,
        "b": found.b.id,
        "worse_beyond_chance": found.is_worse,
        **{name: getattr(found, name) for name in same_names},
        "tasks": [
            {
                "task": pair.task,
                "samples": [len(pair.a), len(pair.b)],
                "pass_rate": pair.pass_rates,
                "difference": pair.difference,
            }
            for pair in found.pairs
        ],
        "measures": [{"name": name, "a": a, "b": b} for name, (a, b) in found.measures.items()],
    }


def print_comparison(found: Comparison) -> None:
    """Print two runs side by side: their tasks, their measures, and whether B is significantly worse than A."""
    a, b = found.a, found.b
    echo("\n".join((f"A  {_summary(a)}", f"B  {_summary(b)}", "")))
    print_table(("task", "A", "B", "score", ""), list(map(_pair_row, found.pairs)), numeric={"A", "B", "score"})
    echo("")
    rows = [(name, _number(in_a), _number(in_b), _number(in_b - in_a)) for name, (in_a, in_b) in found.measures.items()]
    print_table(("per task", "A", "B", "B - A"), rows, numeric={"A", "B", "B - A"})
    echo("")
    for heading, tasks in (
        ("Not compared, because only one run has them or their versions differ", found.left_out),
        ("Better", found.better),
        ("Worse (regressions)", found.worse),
    ):
        if tasks:
            echo(f"{heading}: {', '.join(tasks)}.")
    probability = "less than 0.1 %" if found.chance < 0.001 else f"{found.chance:.1%}"
    score, chance = f"mean score {found.score_difference:+.3f}", f"this happens by chance in {probability} of cases"
    if found.is_worse:
        echo(f"B is significantly worse: {score}; {chance}, below {LEVEL:.0%}.")
    elif found.score_difference < 0:
        echo(f"B scores lower, but this may be chance: {score}; {chance}. Use more --samples to be sure.")
    else:
        echo(f"B is not worse: {score}.")


def _pair_row(pair: Pair) -> tuple[str, ...]:
    change = "worse" if pair.difference < 0 else "better" if pair.difference > 0 else ""
    passed = [f"{sum(one.passed for one in attempts)}/{len(attempts)}" for attempts in (pair.a, pair.b)]
    return pair.task, *passed, f"{pair.difference:+.2f}", change


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
