"""Plans of random conversations: whatever a log holds, what is left can be sent, is small enough, and loses nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from agentcli.conversation.compaction.digest import Carried, collect_facts
from agentcli.conversation.compaction.planning import Budget, Planner
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    Entry,
    Paid,
    Pinned,
    Queued,
    Result,
    User,
    reminder,
)
from agentcli.conversation.history import text_of, turn_steps
from agentcli.llm.messages import (
    Base64Source,
    Image,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from agentcli.settings.structs import CompactionSettings
from tests.properties import examples
from tests.transcripts import is_valid

WORDS = st.sampled_from(["a", "set the port to 80", "ünïcödé 文件", "line\nline", "x" * 900, "y " * 3_000, "[#3]", "`"])


@st.composite
def talks(draw: st.DrawFn) -> list[Entry]:
    """Turns of prompts, rounds, steering, interrupts, notes, pins and earlier compactions, all calls answered."""
    log: list[Entry] = []
    count = 0

    def add(body: Body, id: str | None = None) -> None:
        log.append(Entry(id or f"e{len(log)}", log[-1].id if log else None, 0.0, body))

    add(reminder("Working directory /x."))
    for turn in range(draw(st.integers(1, 16))):
        image = (Image(Base64Source("image/png", "aGk=")),) if draw(st.booleans()) else ()
        add(User((Text(f"prompt {turn} {draw(WORDS)}"), *image)))
        for _ in range(draw(st.integers(0, 6))):
            uses = []
            for _ in range(draw(st.integers(0, 3))):
                count += 1
                uses.append(
                    ToolUse(f"call_{count}", draw(st.sampled_from(["bash", "file_edit"])), {"path": draw(WORDS)})
                )
            thinking = (Thinking("hm", draw(st.sampled_from([None, "sig"]))), RedactedThinking("x"))
            add(
                Assistant(
                    content=(*thinking[: draw(st.integers(0, 2))], Text(draw(WORDS)), *uses), provider="p", model="m"
                )
            )
            add(CallsStarted(tuple(use.id for use in uses)))
            for use in uses:
                add(Result(result=ToolResult(use.id, draw(WORDS), draw(st.booleans())), name=use.name), use.id)
            match draw(st.integers(0, 8)):
                case 0:
                    add(User((Text(f"steer {len(log)}"),)))
                case 1:
                    add(reminder("a note"))
                case 2:
                    add(Pinned(f"fact {len(log)}"))
                case 3:
                    add(Paid(model="p/m"))
                case 4:
                    add(Compaction(carried="so far", covers=("e0", "e1"), first_kept=log[-1].id))
                case _:
                    add(Queued())
    return log


def tokens(messages: Sequence[Message]) -> int:
    return sum(len(str(block)) for message in messages for block in message.content) // 4


def words(log: Sequence[Entry]) -> str:
    """What was said, and what calls gave: the texts that a compaction can choose from."""
    texts = [body.result.text for entry in log if isinstance(body := entry.body, Result)]
    texts += [text_of(body) for entry in log if isinstance(body := entry.body, Assistant)]
    return "".join([*texts, *(entry.body.text for entry in log if entry.is_prompt)])  # type: ignore[union-attr]


def said(messages: Sequence[Message]) -> str:
    return "\n".join(block.text for message in messages for block in message.content if isinstance(block, Text))


@pytest.mark.slow
@given(
    talks(),
    st.sampled_from(["auto", "truncate", "extract", "summarize"]),
    st.integers(1, 6),
    st.sampled_from([3_000, 12_000, 60_000]),
    st.integers(0, 12),
)
@examples(400)
def test_a_plan_is_small_enough_valid_and_complete_or_says_why_there_is_none(
    log: list[Entry], strategy: str, keep: int, window: int, summarised: int
) -> None:
    conversation = Conversation(log)
    turns = turn_steps(conversation)
    rules = CompactionSettings(strategy=strategy, keep_turns=keep)  # type: ignore[arg-type]
    carried = collect_facts(conversation, turns, ["<instructions>\nUse tabs.\n</instructions>"], focus="")
    assert isinstance(carried, Carried)
    before = max(tokens(conversation.messages), 1)
    summaries = dict.fromkeys(range(1, summarised + 1), "It went well.")
    budget = Budget(window, window // 10, before, tokens)
    planner = Planner(
        conversation=conversation, turns=turns, carried=carried, settings=rules, budget=budget, summaries=summaries
    )
    made = planner.plan()
    event(made if isinstance(made, str) else made.strategy)
    if isinstance(made, str):
        assert made
        return
    conversation.add(Entry("now", log[-1].id, 0.0, made))
    messages = conversation.messages
    assert is_valid(messages)
    assert made.tokens_after <= max(planner.limit, 0.75 * rules.at * window)
    assert made.tokens_after < before
    # At least half of the limit is used wherever there was that much to say; a summary says less on purpose.
    assert made.tokens_after >= 0.5 * min(planner.limit, len(words(log)) // 4) or made.strategy == "summarize"
    text = said(messages)
    for fact in carried.pins:
        assert fact in text
    assert "Use tabs." in text
    joined = re.search(r"entries \[#(\d+) to #(\d+)\]", text)
    for number, entry in enumerate(log, 1):
        body = entry.body
        if isinstance(body, User) and not body.is_reminder:
            numbered = f"User [#{number}]" in text or f"recall id={number}]" in text
            assert body.text in text or numbered or (joined and int(joined[1]) <= number <= int(joined[2]))
    answered = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResult)]
    asked = [use.id for message in messages for use in message.tool_uses]
    assert answered == asked
    conversation.add(Entry("next", "now", 0.0, User((Text("and now?"),))))
    assert is_valid(conversation.messages)
    assert "and now?" in said(conversation.messages)


def test_a_prompt_that_is_short_is_never_cut() -> None:
    prompt, calls = "p" * 1_900, [ToolUse(f"c{number}", "bash", {}) for number in range(12)]
    bodies: list[Body] = [
        User((Text("before"),)),
        Assistant(content=(Text("done"),), provider="p", model="m"),
        User((Text(prompt),)),
        Assistant(content=tuple(calls), provider="p", model="m"),
        *(Result(result=ToolResult(use.id, "r" * 4_000), name="bash") for use in calls),
    ]
    log = [Entry(f"e{number}", f"e{number - 1}" if number else None, 0.0, body) for number, body in enumerate(bodies)]
    made = []
    for window in range(3_000, 12_000, 200):
        conversation = Conversation(log)
        planner = Planner(
            conversation=conversation,
            turns=(turns := turn_steps(conversation)),
            carried=collect_facts(conversation, turns, [], focus=""),
            settings=CompactionSettings(),
            budget=Budget(window, 100, tokens(conversation.messages), tokens),
        )
        if isinstance(plan := planner.plan(), Compaction):
            made.append(plan)
            conversation.add(Entry("now", log[-1].id, 0.0, plan))
            assert prompt in said(conversation.messages), f"a window of {window} tokens"
    assert made


def test_results_are_whole_again_where_long_answers_have_to_be_cut_as_well() -> None:
    bodies: list[Body] = []
    for turn in range(8):
        use = ToolUse(f"c{turn}", "bash", {})
        bodies += [
            User((Text(f"prompt {turn}"),)),
            Assistant(content=(use,), provider="p", model="m"),
            Result(result=ToolResult(use.id, "r" * 4_000), name="bash"),
            Assistant(content=(Text("a" * 12_000),), provider="p", model="m"),
        ]
    log = [Entry(f"e{number}", f"e{number - 1}" if number else None, 0.0, body) for number, body in enumerate(bodies)]
    conversation = Conversation(log)
    planner = Planner(
        conversation=conversation,
        turns=(turns := turn_steps(conversation)),
        carried=collect_facts(conversation, turns, [], focus=""),
        settings=CompactionSettings(strategy="truncate", keep_turns=1),
        budget=Budget(90_000, 100, tokens(conversation.messages), tokens),
    )
    plan = planner.plan()
    assert isinstance(plan, Compaction)
    conversation.add(Entry("now", log[-1].id, 0.0, plan))
    blocks = [block for message in conversation.messages for block in message.content]
    assert [len(block.text) for block in blocks if isinstance(block, ToolResult)] == [4_000] * 8
    answers = [len(block.text) for block in blocks if isinstance(block, Text) and block.text.startswith("a")]
    assert min(answers) < 6_000 < max(answers) == 12_000
