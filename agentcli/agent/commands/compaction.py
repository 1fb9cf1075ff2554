"""What the model keeps in sight: compacting the conversation, and facts that no compaction leaves out."""

from __future__ import annotations

from agentcli.agent.commands.command import Command, CommandHost, Outcome, number_in
from agentcli.conversation.entries import Compaction, Pinned, reminder
from agentcli.errors import UsageError, UserError

DRY = "--dry-run"


async def _compact(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    words = argument.split()
    is_dry = DRY in words
    if unknown := next((word for word in words if word.startswith("--") and word != DRY), None):
        raise UsageError(f"/compact takes no {unknown}: /compact [FOCUS], /compact {DRY} [FOCUS].")
    made = await session.compact(" ".join(word for word in words if word != DRY), is_dry=is_dry)
    if isinstance(made, str):
        raise UserError(f"Nothing was compacted: {made}.")
    return _explained(made) if is_dry else _told(made)


def _told(made: Compaction) -> str:
    cost = f" It cost ${made.cost_usd:.4f}." if made.cost_usd else ""
    return f"Compacted: {made.tokens_before:,} → {made.tokens_after:,} tokens ({made.strategy}).{cost}"


def _explained(made: Compaction) -> str:
    cut = f"{len(made.stubs)} of the newest entries would be cut" if made.stubs else "the newest turns stay whole"
    cost = "It would cost nothing."
    if made.cost_usd:
        cost = f"A model would summarise it, for ${made.cost_usd:.4f} at most; without one it is as above."
    elif made.cost_usd is None:
        cost = "A model would summarise it; its price is not known."
    return "\n".join(
        [
            f"{made.tokens_before:,} → {made.tokens_after:,} tokens ({made.strategy}); {cut}. {cost}",
            "The log keeps all of it. The model would read, ahead of the newest turns:",
            "",
            made.carried,
        ]
    )


async def _pin(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    facts = session.state.conversation.pins
    if not argument:
        listed = [f"  {number}  {fact}" for number, fact in enumerate(facts, 1)]
        return (
            "\n".join([*listed, "Another one: /pin TEXT; /pin remove NUMBER takes one out."]) if facts else "No pins."
        )
    verb, _, rest = argument.partition(" ")
    if verb == "remove":
        fact = facts[number_in(rest.strip(), len(facts), "pin")]
        session.append(Pinned(fact, is_removed=True))
        return f"No longer pinned: {fact}"
    session.append(Pinned(argument))
    session.state.notes.append(reminder(f"The user pinned this for the whole conversation: {argument}"))
    return f"Pinned: {argument}"


COMPACTION_COMMANDS = (
    Command(
        "compact",
        "shorten what the model reads of this conversation",
        _compact,
        "[FOCUS]",
        ("summarize", "compress"),
        forms=("", "FOCUS", f"{DRY} [FOCUS]"),
    ),
    Command("pin", "keep a fact in sight for good, or show them", _pin, "[TEXT]", forms=("", "TEXT", "remove NUMBER")),
)
