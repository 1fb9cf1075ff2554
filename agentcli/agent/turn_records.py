"""Records of the turns of a conversation: the model's thoughts, calls and answers, and their tokens, cost and time."""

from collections.abc import Iterable

from msgspec import Struct, field

from agentcli.agent.accounting import Tally, paid_request
from agentcli.conversation.entries import Assistant, Entry, Paid, Result, SkillActivated, SkillEnded, User
from agentcli.conversation.history import calls_in, text_of
from agentcli.conversation.mentions import typed_text
from agentcli.llm.messages import Thinking, ToolUse

_UNFINISHED = ("interrupted", "max_tokens", "pause_turn", "model_context_window_exceeded")  # the next reply goes on


class TurnMetrics(Tally, kw_only=True):
    """The tokens and cost of a turn's requests, and the seconds from the prompt to the last reply and first token."""

    latency_s: float = 0.0
    first_token_s: float | None = None
    whole_usd = Tally.full_cost_usd  # its name in earlier versions


class TurnRecord(Struct, kw_only=True):
    """A turn. `thoughts` are the model's thinking and its texts before the answer; `skills` were active meanwhile.

    `observations` are the results of the `calls`, as stored in the log. `model` is the `provider/model` of the last
    reply. A message that steers a turn also begins a new record.
    """

    prompt: str = ""
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolUse] = field(default_factory=list)
    observations: list[Result] = field(default_factory=list)
    answer: str = ""
    skills: list[str] = field(default_factory=list)
    model: str = ""
    metrics: TurnMetrics = field(default_factory=TurnMetrics)


def turn_records(path: Iterable[Entry]) -> list[TurnRecord]:
    """Return the records of the turns on a path, oldest first. The path has no messages that were taken back."""
    record, records = TurnRecord(), list[TurnRecord]()  # the first `record`, before any prompt, is not in `records`
    skills: dict[str, str] = {}  # names of the active skills, by the ids of their activations
    began = 0.0  # Unix time of the prompt
    is_unfinished = False  # the newest reply is incomplete, so the next one continues `record.answer`
    for entry in path:
        metrics, passed_s = record.metrics, entry.time - began
        match body := entry.body:
            case SkillActivated(id, skill):
                skills[id] = skill.name
                record.skills = list(dict.fromkeys([*record.skills, skill.name]))
            case SkillEnded(id):
                skills.pop(id, None)
            case User(content, is_reminder=False):
                record = TurnRecord(prompt=typed_text(content), skills=list(dict.fromkeys(skills.values())))
                records.append(record)
                began, is_unfinished = entry.time, False
            case Assistant():
                if record.answer and not is_unfinished:  # another reply follows, so the text was a thought
                    record.thoughts, record.answer = [*record.thoughts, record.answer], ""
                record.thoughts += [block.thinking for block in body.content if isinstance(block, Thinking)]
                record.calls += calls_in(body)
                record.answer += text_of(body)
                record.model = f"{body.provider}/{body.model}"
                is_unfinished = body.stop_reason in _UNFINISHED and not calls_in(body)
                metrics.latency_s = passed_s
                # `passed_s` ends with the reply, so the time after the reply's first token is subtracted.
                if metrics.first_token_s is None and body.first_token_ms is not None:
                    metrics.first_token_s = max(0.0, passed_s - (body.duration_ms - body.first_token_ms) / 1000)
                if paid_request(body):
                    metrics.add(body.usage, body.cost_usd, body.duration_ms, body.retries)
            case Result(result=result) if any(use.id == result.tool_use_id for use in record.calls):
                record.observations.append(body)
            case Paid() if body.reason != "aside" and paid_request(body):  # a side question is not part of the turn
                metrics.add(body.usage, body.cost_usd, body.duration_ms)
    return records
