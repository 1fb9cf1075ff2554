"""Events that a session sends, operations that `(await agent.session()).submit(…)` takes, and records of turns."""

from agentcli.agent.events import *
from agentcli.agent.ops import Approve, ClientResult, Interrupt, Prompt, SetEffort, SetMode, SetModel, Steer
from agentcli.agent.turn_records import TurnMetrics, TurnRecord

__all__ = [
    "AnyQuestion", "ApprovalSettled", "Approve", "BlockEnded", "BlockStarted", "CallApproval", "ChangesApproval",
    "ClientResult", "ClientToolRequested", "CommandApproval", "Compaction", "Denial", "Done", "EditApproval",
    "EntryStored", "Event", "HookRan", "InputDelta", "Interrupt", "LimitQuestion", "ModeChanged", "Notice",
    "OutputDelta", "PlanApproval", "Prompt", "PromptProgress", "ProviderSwitched", "Question", "QuestionEvent",
    "QueueChanged", "ReplyStarted", "Retry", "SetEffort", "SetMode", "SetModel", "Steer", "Steered", "SubagentEnded",
    "SubagentStarted", "TakenOver", "TextDelta", "ThinkingDelta", "ToolFinished", "ToolStarted", "TurnEnded",
    "TurnFailed", "TurnMetrics", "TurnRecord", "TurnStarted", "UsageReported",
]  # fmt: skip
