"""The model and what it costs: which one, how hard it thinks, what fills its window, a question beside the work."""

from __future__ import annotations

from typing import get_args

from agentcli.agent.aside import ask_aside
from agentcli.agent.commands.command import Command, Desk, Outcome
from agentcli.agent.context_use import context_use
from agentcli.agent.events import SetEffort, SetModel
from agentcli.errors import UsageError
from agentcli.llm.messages import Usage
from agentcli.llm.provider import Effort

_LEVELS: tuple[Effort, ...] = get_args(Effort)


async def _model(desk: Desk, argument: str) -> Outcome:
    state = desk.session.state
    name, _, effort = argument.partition(" ")
    if not name:
        return f"{state.model}. Another one: /model PROVIDER/MODEL; `agentcli models list` shows those that are known."
    level = _level(effort) if effort.strip() else None
    said = desk.check_model(name)
    desk.session.submit(SetModel(name))
    if level:
        desk.session.submit(SetEffort(level))
    return f"{said} Effort {level}." if level else said


async def _effort(desk: Desk, argument: str) -> Outcome:
    session = desk.session
    if not argument:
        now = session.state.effort or session.runtime.effort or "as the model has it"
        return f"Effort: {now}. Another one: /effort {'|'.join(_LEVELS)}|default"
    if argument == "default":
        session.submit(SetEffort(None))
        return f"Effort: {session.runtime.effort or 'as the model has it'}."
    level = _level(argument)
    session.submit(SetEffort(level))
    return f"Effort from the next request on: {level}."


def _level(text: str) -> Effort:
    if text.strip() not in _LEVELS:
        raise UsageError(f"No effort {text.strip()!r}; there is {', '.join(_LEVELS)}.")
    return next(level for level in _LEVELS if level == text.strip())


async def _context(desk: Desk, argument: str) -> Outcome:
    use = await context_use(desk.session)
    width = max(len(name) for name in use.parts)
    rows = [f"  {name:<{width}}  {tokens:>9,}  {tokens / use.window:>5.1%}" for name, tokens in use.parts.items()]
    counted = f" The provider counted {use.counted:,} with the newest reply." if use.counted else ""
    return "\n".join(
        [
            f"{use.model}: about {use.total:,} of {use.window:,} tokens ({use.total / use.window:.0%})",
            *rows,
            f"  {'free':<{width}}  {use.free:>9,}  {use.free / use.window:>5.1%}",
            f"All of these are estimates.{counted}",
        ]
    )


async def _usage(desk: Desk, argument: str) -> Outcome:
    meter = desk.session.state.meter
    if not meter.by_model:
        return "Nothing was used yet."
    rows = [_usage_row(model, usage, cost) for model, (usage, cost) in meter.by_model.items()]
    if len(rows) > 1:
        rows.append(_usage_row("total", meter.total, meter.cost_usd))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)


def _usage_row(name: str, usage: Usage, cost: float | None) -> tuple[str, str]:
    price = "price unknown" if cost is None else f"${cost:.4f}"
    cached = usage.cache_read_input_tokens
    return name, f"{usage.prompt_tokens:,} tokens in ({cached:,} cached), {usage.output_tokens:,} out, {price}"


async def _btw(desk: Desk, question: str) -> Outcome:
    if not question:
        raise UsageError("Ask something: /btw QUESTION. The conversation does not keep it.")
    return await ask_aside(desk.session, question)


MODEL_COMMANDS = (
    Command(
        "model", "show the model, or use another one from the next request on", _model, "[PROVIDER/MODEL] [EFFORT]"
    ),
    Command("effort", "show or set how hard the model thinks", _effort, f"[{'|'.join(_LEVELS)}|default]"),
    Command("context", "show what fills the model's window", _context),
    Command("usage", "show tokens and cost by model", _usage, aliases=("cost", "stats")),
    Command(
        "btw",
        "ask something beside the work; the conversation does not keep it",
        _btw,
        "QUESTION",
        ("side",),
        is_aside=True,
    ),
)
