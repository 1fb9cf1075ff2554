"""The steps around the requests of a turn. A new step is a class, with a place in the list of `usual_steps`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agentcli.agent.result import AnswerSchema
from agentcli.agent.runtime import TurnStep
from agentcli.agent.steps.limits import BudgetLimit, RepeatLimit, ResetWait, RoundLimit
from agentcli.agent.steps.messages import (
    CallsPending,
    ContinuedReply,
    FittingAnswer,
    FolderInstructions,
    NestedInstructions,
    PlanReview,
    PromptHooks,
    QueuedMessages,
    ReplyHook,
    RequiredAnswer,
    SmallModelNudge,
    StopHooks,
)


def usual_steps(
    *, nested: NestedInstructions | None = None, schema: AnswerSchema | None = None
) -> list[Callable[[], TurnStep]]:
    """Return the factories of a turn's steps, in order; features append theirs.

    `nested` finds the instruction files of folders that calls go to; an answer must fit the `schema`.
    """
    return [
        PromptHooks,
        ResetWait,
        ReplyHook,
        BudgetLimit,
        RoundLimit,
        *([partial(FolderInstructions, nested)] if nested is not None else []),
        RepeatLimit,
        QueuedMessages,
        CallsPending,
        ContinuedReply,
        PlanReview,
        *([partial(FittingAnswer, schema)] if schema is not None else []),
        SmallModelNudge,
        RequiredAnswer,
        StopHooks,
    ]
