"""Reads from the settings what a turn, a session and a day may take."""

from __future__ import annotations

from typing import Literal, get_args

from agentcli.agent.accounting.budgets import Amounts, Budgets, Kind, MemoryAccount
from agentcli.agent.runtime import Limits
from agentcli.infra.day_account import DayAccount
from agentcli.llm.reply_limits import ReplyLimits
from agentcli.llm.retry import RetryPolicy
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, Settings

ROUNDS, INTERACTIVE_ROUNDS = 25, 100  # requests for one prompt where no setting says how many


def turn_limits(settings: Settings, *, asks: bool) -> Limits:
    """The limits of one prompt; with `asks` there is a person who may allow more."""
    return Limits(
        settings.limits.max_turns or (INTERACTIVE_ROUNDS if asks else ROUNDS),
        settings.tokens.max_output,
        asks=asks,
        budgets=budget_of(settings.budgets, "turn"),
        cheaper_model=settings.budgets.fallback_model,
        cheaper_at=settings.budgets.fallback_at,
        waits_for_reset=settings.limits.wait_for_reset,
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    """How often a request is tried, and what one reply may hold."""
    limits = settings.limits
    reply = ReplyLimits(limits.max_reply_mb, limits.max_arguments_mb, limits.max_reply_s)
    return RetryPolicy(settings.retry.max, settings.retry.initial_delay, reply)


def session_budgets(config: Config) -> Budgets:
    """The accounts of a session: its own, and the day's."""
    settings = config.settings
    session = budget_of(settings.budgets, "session")
    if (most := settings.limits.max_budget_usd) is not None:
        session["usd"] = min(most, session.get("usd", most))
    ledger = DayAccount(config.paths.state / "budgets.db", budget_of(settings.budgets, "day"))
    return Budgets((MemoryAccount("session", session), ledger), warn_at=settings.budgets.warn_at)


def budget_of(budgets: BudgetSettings, scope: Literal["turn", "session", "day"]) -> Amounts:
    return {kind: limit for kind in get_args(Kind) if (limit := getattr(budgets, f"{scope}_{kind}")) is not None}
