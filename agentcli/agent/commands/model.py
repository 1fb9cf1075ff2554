"""Commands about the model: which one answers, its effort, its window, and questions beside the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand, marked, without_keep
from agentcli.agent.ops import SetEffort, SetModel
from agentcli.agent.requests.paid_request import PaidRequest, Target
from agentcli.agent.requests.repairs import without
from agentcli.agent.requests.request import build_request
from agentcli.conversation.entries import PaidReason
from agentcli.errors import UsageError, UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Text, Usage
from agentcli.llm.provider import Effort
from agentcli.llm.transcript import doctor

if TYPE_CHECKING:
    from agentcli.agent.session import Session

_LEVELS: tuple[Effort, ...] = get_args(Effort)
_IN_WORDS: dict[str, str] = {
    "low": "quick and cheap, for what is plain",
    "medium": "for everyday work",
    "high": "for what has several sides",
    "xhigh": "for what takes long thought",
    "max": "as hard as it can, whatever it costs",
}


async def _model(host: CommandHost, argument: str) -> Outcome:
    name, keeps = without_keep(argument)
    name, _, effort = name.partition(" ")
    if not name:
        options = list(await host.models())
        now = host.session.state.model.name
        if now not in (label for label, _ in options):
            options.insert(0, (now, ""))
        current = [label for label, _ in options].index(now)
        picked = await host.choose("Model · window · $ per million tokens", options, current=current, can_keep=True)
        if picked is None:
            return marked(options, current, "Another one: /model PROVIDER/MODEL; any other works too.")
        name, keeps = options[picked][0], picked.keeps
    level = _level(effort) if effort.strip() else None
    said = [await host.check_model(name)]
    host.session.submit(SetModel(name))
    if level:
        host.session.submit(SetEffort(level))
        said.append(f"Effort {level}.")
    if keeps:
        said.append(await host.store_setting("provider.model", name))
        said += [await host.store_setting("tokens.effort", level)] if level else []
    else:
        said.append(f"For this session; /model {name} keep keeps it.")
    return " ".join(said)


async def _effort(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    level, keeps = without_keep(argument)
    if not level:
        options = [("default", f"{session.runtime.models.effort or 'as the model has it'}"), *_IN_WORDS.items()]
        names = [name for name, _ in options]
        current = names.index(session.state.model.effort or "default")
        picked = await host.choose("How hard the model thinks", options, current=current, can_keep=True)
        if picked is None:
            return marked(options, current, "Another one: /effort LEVEL")
        level, keeps = names[picked], picked.keeps
    effort = None if level == "default" else _level(level)
    session.submit(SetEffort(effort))
    said = f"Effort from the next request on: {effort or session.runtime.models.effort or 'as the model has it'}."
    if keeps:
        return f"{said} {await host.store_setting('tokens.effort', effort)}"
    return f"{said} For this session; /effort {level} keep keeps it."


def _level(text: str) -> Effort:
    for level in _LEVELS:
        if level == text.strip():
            return level
    raise UsageError(f"No effort {text.strip()!r}; there is {', '.join(_LEVELS)}.")


async def _context(host: CommandHost, argument: str) -> Outcome:
    use = await host.session.runtime.context_use(host.session.state)
    parts, share = {**use.parts, "free": use.free}, f"{use.request / use.window:.0%}"
    width = max(map(len, parts))
    lines = [f"{use.model}: the next request takes about {use.request:,} of {use.window:,} tokens ({share})"]
    lines += [f"  {name:<{width}}  {tokens:>9,}  {tokens / use.window:>6.1%}" for name, tokens in parts.items()]
    return "\n".join([*lines, "Sources are counted by the model's encoder, the request by what its provider counted."])


async def _btw(host: CommandHost, question: str) -> Outcome:
    if not question:
        raise UsageError("Ask something: /btw QUESTION. The conversation does not keep it.")
    return await answer_side_question(host.session, question)


MODEL_COMMANDS = (
    SlashCommand(
        "model",
        "show the models, or use another one from now on",
        _model,
        "[MODEL]",
        forms=("", "PROVIDER/MODEL", "PROVIDER/MODEL EFFORT", "PROVIDER/MODEL [EFFORT] keep"),
    ),
    SlashCommand(
        "effort",
        "show or set how hard the model thinks",
        _effort,
        "[LEVEL]",
        forms=("", f"{'|'.join(_LEVELS)}|default", "LEVEL keep"),
    ),
    SlashCommand("context", "show what fills the model's window", _context),
    SlashCommand("btw", "ask beside the work; it is not kept", _btw, "QUESTION", ("side",), is_aside=True),
)


MAX_ANSWER_TOKENS = 4_096
_PREAMBLE = (
    "<system-reminder>A question beside the work. Answer it in a few sentences from what you know; "
    "call no tool, change nothing.</system-reminder>\n"
)


async def answer_side_question(session: Session, question: str) -> str:
    """Return the model's answer, also while a turn runs. Calls it makes are not run. Raises `UserError`."""
    state, runtime = session.state, session.runtime
    target = Target(*await runtime.models.resolve(state))
    info = target.info
    prefix = runtime.prefix(info)  # the same bytes as the work's, so that its cache is used
    asked = Message("user", (Text(_PREAMBLE + question),))
    messages = doctor((*state.conversation.messages, asked))
    request = build_request(runtime, state, prefix, messages, max_tokens=min(MAX_ANSWER_TOKENS, info.max_output))
    request = without(request, state.model.rejected.get(target.name, ()))

    def book(used: Usage, reason: PaidReason = "broken") -> None:
        session.paid(target.name, used, info.cost(used), reason, duration_ms=paid.attempt.duration_ms)

    paid = PaidRequest(target=target, budgets=state.budgets, policy=runtime.models.retry, on_broken=book)
    try:
        reply = await paid.reply(request)
    except ProviderError as error:
        raise UserError(f"The question could not be answered: {error}") from error
    book(reply.usage, "aside")
    return reply.message.text.strip() or "(The model said nothing.)"
