"""Random runs against a provider that bills by rules of its own: no budget is ever overspent."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from agentcli.agent.accounting import Account, Amounts, Budgets, OverBudget
from agentcli.agent.commands.model import answer_side_question
from agentcli.agent.events import Done
from agentcli.agent.ops import Interrupt
from agentcli.agent.runtime import TurnLimits
from agentcli.errors import UserError
from agentcli.infra.shared import DayAccount
from agentcli.llm.errors import ConnectionFailed, Overloaded
from agentcli.llm.messages import Message, Text, ToolUse, Usage
from agentcli.llm.models import ModelInfo, Prices, estimate
from agentcli.llm.provider import Done as ReplyDone
from agentcli.llm.provider import (
    Request,
    RetryPolicy,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdate,
)
from agentcli.llm.providers.scripted import ScriptedProvider
from tests.unit.agent.stage import on_stage

FEW, MANY = 40, 250
PIECE = 4_000


class BillingProvider(ScriptedProvider):
    """Bills what it read, thought unseen and sent, also where it breaks off, and reports some of that."""

    def __init__(self, name: str, chance: random.Random, density: float) -> None:
        band = Prices(input=6.0, output=60.0, cache_write=7.5, cache_read=0.3)
        prices = Prices(input=3.0, output=30.0, cache_write=3.75, cache_read=0.3, above=6_000, higher=band)
        self._thinks = chance.random() < 0.5
        thinking: Literal["none", "effort"] = "effort" if self._thinks else "none"
        super().__init__([], info=ModelInfo(name, name, prices=prices, max_output=16_000, thinking=thinking))
        self.name = name
        self.billed_usd = 0.0
        self.billed_tokens = 0
        self._chance = chance
        self._tokens_per_estimate = density * chance.uniform(0.7, 1.0)  # tokenizers differ by about so much
        self._numbers = 0

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        chance = self._chance
        if chance.random() < 0.15:
            raise Overloaded("no room", status=529)
        prompt = int(estimate(request, self.info).tokens * self._tokens_per_estimate)
        written = chance.choice((0, prompt, prompt // 2))
        usage = Usage(prompt - written, 1, cache_creation_input_tokens=written)
        hidden = chance.randint(0, request.max_tokens - 1) if self._thinks else 0
        text = "word " * chance.choice((1, 40, 400, request.max_tokens))
        tokens = min(request.max_tokens - hidden, len(text) // 4 + 1)
        breaks_at = chance.choice((None, None, None, 0, 0.5, 0.9))
        reports = chance.random() < 0.5
        if reports:
            yield UsageUpdate(usage)
        calls = chance.random() < 0.6
        sent = text if breaks_at is None else text[: int(len(text) * breaks_at)]
        billed = Usage(usage.input_tokens, hidden + min(tokens, len(sent) // 4 + 1), written)
        if breaks_at == 0 and not reports:
            raise ConnectionFailed("gone")  # before it had begun
        self._bill(Usage(billed.input_tokens, hidden, written))
        await asyncio.sleep(0)
        if calls:
            yield ToolCallStarted("x", "think")
        for start in range(0, len(sent), PIECE):
            await asyncio.sleep(0)
            piece = sent[start : start + PIECE]
            self._bill(Usage(0, max(0, min(tokens - start // 4, len(piece) // 4))))
            yield ToolCallDelta("x", piece) if calls else TextDelta(piece)
        if breaks_at is not None:
            raise ConnectionFailed("gone")
        self._numbers += 1
        blocks = (ToolUse(f"{self.name}{self._numbers}", "think", {"thought": sent}),) if calls else (Text(sent),)
        stop = "tool_use" if calls else chance.choice(("end_turn", "max_tokens"))
        told = billed if reports or chance.random() < 0.8 else Usage()
        yield ReplyDone(Message("assistant", blocks), stop, told, self.model)  # type: ignore[arg-type]

    def _bill(self, usage: Usage) -> None:
        self.billed_usd += self.info.cost(usage) or 0.0
        self.billed_tokens += usage.context_tokens


async def run(seed: int, folder: Path) -> bool:
    """One session of several turns; raises where more was billed than a budget allows. True if one stopped it."""
    chance = random.Random(seed)
    limit: Amounts = {"usd": chance.uniform(0.01, 1.5)}
    if chance.random() < 0.4:
        limit["tokens"] = chance.randint(3_000, 120_000)
    day: Amounts = {"usd": limit["usd"] * chance.uniform(0.5, 2)}
    turn: Amounts = {"usd": chance.uniform(0.05, 0.6)} if chance.random() < 0.5 else {}
    ledger = DayAccount(folder / f"{seed}.db", day)
    budgets = Budgets((Account("session", limit), ledger))
    density = chance.uniform(0.4, 1.0)
    providers = [BillingProvider(name, chance, density) for name in ("scripted", "other")]
    models = {"other/other": providers[1]}

    def billed() -> tuple[float, int]:
        return sum(p.billed_usd for p in providers), sum(p.billed_tokens for p in providers)

    stops = 0
    async with on_stage(
        folder, provider=providers[0], others=models, budgets=budgets, fallback_model="other/other",
        limits=TurnLimits(max_turns=8, budgets=turn, max_breaks=2), retry=RetryPolicy(2, 0.0001),
    ) as stage:  # fmt: skip
        for number in range(4):
            before, _ = billed()
            question = None
            if chance.random() < 0.3:
                question = asyncio.create_task(answer_side_question(stage.session, "why?"))
            stage.say("x" * chance.choice((1, 500, 20_000)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.01))
                stage.submit(Interrupt())
            end = await stage.ended(number + 1)
            if question is not None:
                with suppress(UserError):
                    await question
            stops += isinstance(end, Done) and end.reason == "max_budget"
            usd, tokens = billed()
            assert usd <= limit["usd"] + 1e-9, (seed, usd, limit)
            assert usd <= day["usd"] + 1e-9, (seed, usd, day)
            assert tokens <= limit.get("tokens", tokens), (seed, tokens, limit)
            assert question or usd - before <= turn.get("usd", usd) + 1e-9, (seed, usd - before, turn)
            assert ledger.spent()["usd"] >= usd - 1e-9, (seed, usd, ledger.spent())
    return stops > 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, FEW + MANY), marks=pytest.mark.full)])
async def test_no_budget_is_overspent(tmp_path: Path, seeds: range) -> None:
    assert sum([await run(seed, tmp_path) for seed in seeds]) > len(seeds) / 10  # that many were stopped by one


@pytest.mark.parametrize("is_day", [False, True])
def test_what_is_held_for_running_requests_is_not_told_as_spent(tmp_path: Path, is_day: bool) -> None:
    limits: Amounts = {"usd": 1.0}
    account = DayAccount(tmp_path / "day.db", limits) if is_day else Account("session", limits)
    info = ModelInfo("m", "p", prices=Prices(input=1.0, output=1.0), max_output=1_000_000)
    budgets = Budgets((account,))
    running = budgets.reserve(lambda: 400_000, 500_000, info)
    budgets.charge({"usd": 0.05})
    assert budgets.warnings(info) == []
    with pytest.raises(OverBudget, match=r"spent: \$0.95; the next"):
        budgets.reserve(lambda: 200_000, 2_000, info)
    running.settle(Usage(800_000, 0), 0.8, 1.0)
    assert budgets.warnings(info) == [f"The {account.scope}'s budget is 85% used: $0.85 of $1.00."]


def test_what_is_held_since_yesterday_takes_nothing_of_what_today_has_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "West+12")
        time.tzset()
        account = DayAccount(tmp_path / "day.db", {"usd": 1.0})
        account.hold({"usd": 0.4})
        zone.setenv("TZ", "East-14")  # 26 hours later: always another day
        time.tzset()
        spent = account.spent(with_held=False)["usd"]
    time.tzset()
    assert spent == 0.0
