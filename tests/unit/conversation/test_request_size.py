"""The size of the next request: counts of the provider, estimates of what came since, and what these learn."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    Entry,
    Result,
    Retracted,
    Rewound,
    User,
)
from agentcli.llm.messages import Base64Source, Image, Text, Thinking, ToolResult, Usage
from agentcli.llm.models import ModelInfo, Size
from agentcli.llm.provider import ToolSpec
from tests.properties import examples

MODEL, OTHER = ModelInfo("m", "p", takes_images=True), ModelInfo("o", "p")
TOOLS = (ToolSpec("look", "Looks.", {"type": "object"}),)
WORDS = "some words of a text " * 300  # 6,300 bytes: 2,100 estimated tokens


def said(text: str = WORDS) -> User:
    return User((Text(text),))


def reply(prompt: int, output: int = 10, *, model: str = "m", text: str = "Yes.", **more: object) -> Assistant:
    usage = Usage(prompt, output, reasoning_tokens=int(str(more.get("reasoning", 0))))
    stop = "interrupted" if more.get("is_interrupted") else "end_turn"
    content = (Thinking("hm"), Text(text)) if more.get("thinks") else (Text(text),)
    return Assistant(content=content, provider="p", model=model, usage=usage, stop_reason=stop)


def conversation(*bodies: Body) -> Conversation:
    made = Conversation()
    extend(made, *bodies)
    return made


def extend(made: Conversation, *bodies: Body) -> None:
    for body in bodies:
        last = made.path[-1].id if made.path else None
        made.add(Entry(f"e{len(made.entries)}", last, 0.0, body))


def tokens(made: Conversation, model: ModelInfo = MODEL) -> int:
    return made.size.tokens("You help.", TOOLS, model)


def test_without_a_count_everything_is_estimated_with_a_margin() -> None:
    assert tokens(conversation()) < 60
    assert tokens(conversation(said())) == pytest.approx(2_100 * 1.1, rel=0.05)
    dense = ModelInfo("d", "p", token_factor=1.3)
    assert tokens(conversation(said()), dense) == pytest.approx(2_100 * 1.1 * 1.3, rel=0.05)


def test_the_newest_count_is_the_base_and_what_came_since_is_estimated_as_was_learned() -> None:
    made = conversation(said(), reply(1_500))
    assert tokens(made) == 1_510
    extend(made, said())
    assert tokens(made) == pytest.approx(1_510 + 1_480, rel=0.02)  # as many tokens a byte as the first


def test_images_count_by_their_size_and_teach_nothing() -> None:
    picture = Image(Base64Source("image/png", "AAAA"))
    made = conversation(said(), reply(1_500), Result(result=ToolResult("c", (picture,)), name="file_read"))
    assert tokens(made) == pytest.approx(1_510 + 1_600, abs=30)
    assert tokens(conversation(User((picture,))), OTHER) < 100  # which sees none, and is sent none
    extend(made, reply(1_520), said())
    assert tokens(made) == pytest.approx(1_530 + 1_480, rel=0.02)


def test_another_model_is_estimated_until_it_has_counted_and_the_first_keeps_its_base() -> None:
    made = conversation(said(), reply(1_500))
    assert tokens(made, OTHER) == pytest.approx(2_100 * 1.1, rel=0.05)
    extend(made, said(), reply(5_000, model="o"))
    assert tokens(made, OTHER) == 5_010
    assert tokens(made) == pytest.approx(1_510 + 1_480, rel=0.02)


def test_after_a_compaction_no_count_from_before_it_is_used() -> None:
    made = conversation(said(), reply(1_500), said(), reply(3_000), said("Go on."))
    assert tokens(made) > 3_000
    extend(made, Compaction(carried="What was said.", first_kept="e4"))
    assert tokens(made) < 100
    extend(made, reply(90), said())
    assert tokens(made) == pytest.approx(100 + 1_480, rel=0.05)


def test_undone_changes_do_not_count() -> None:
    made = conversation(said(), reply(1_500), said())
    assert tokens(made) > 2_900
    extend(made, Retracted(("e2",)))
    assert tokens(made) == 1_510
    extend(made, said(), reply(2_990), said())
    assert tokens(made) > 4_000
    extend(made, Rewound("e4"))
    assert tokens(made) == 1_510


def test_an_interrupted_reply_counts_its_request_and_the_text_that_is_kept() -> None:
    made = conversation(said(), reply(1_500, 1, text=WORDS, is_interrupted=True))
    assert tokens(made) == pytest.approx(1_500 + 1_490, rel=0.02)


def test_reasoning_that_is_not_sent_again_does_not_count() -> None:
    made = conversation(said(), reply(1_500, 4_000, reasoning=3_900))
    assert tokens(made) == 1_600
    thinking = conversation(said(), reply(1_500, 4_000, reasoning=3_900, thinks=True))
    assert tokens(thinking) == 5_500


def test_nothing_is_learned_from_a_difference_that_reasoning_may_explain() -> None:
    made = conversation(said(), reply(1_500, 4_000, reasoning=3_900, thinks=True))
    extend(made, said(), reply(3_110, 10), said())  # the provider dropped the reasoning
    assert tokens(made) == pytest.approx(3_120 + 1_480, rel=0.02)


@pytest.mark.parametrize("counted", [1, 100_000_000])
def test_a_count_that_cannot_be_of_these_texts_is_the_base_and_teaches_nothing(counted: int) -> None:
    made = conversation(said(), reply(counted), said())
    assert tokens(made) == pytest.approx(counted + 10 + 2_100 * 1.1, rel=0.05)


def test_a_prefix_that_grew_since_the_count_is_added() -> None:
    made = conversation(said(), reply(1_500))
    tokens(made)
    assert made.size.tokens("You help." + WORDS, TOOLS, MODEL) == pytest.approx(1_510 + 1_480, rel=0.02)


def test_a_stored_conversation_is_learned_from_when_it_is_measured_first() -> None:
    bodies = [said(), reply(1_500), said(), reply(3_000), said(), reply(4_500), said()]
    grown = Conversation()
    for body in bodies:
        extend(grown, body)
        tokens(grown)
    stored = Conversation(grown.entries)
    assert tokens(stored) == tokens(grown) == pytest.approx(6_000, rel=0.02)
    assert stored.size.calibration.tokens("p/m", Size(6_300)) == pytest.approx(1_500, rel=0.05)


COUNTS = st.sampled_from([0, 10**8, 2 * 10**8])  # the large ones teach nothing, so that order does not matter


@given(
    st.lists(
        st.one_of(
            st.builds(said, st.text(max_size=50)),
            st.builds(reply, COUNTS, st.just(7), model=st.sampled_from(["m", "o"]), is_interrupted=st.booleans()),
            st.just(CallsStarted(("x",))),
            st.builds(lambda text: Result(result=ToolResult("c", text), name="bash"), st.text(max_size=50)),
            st.builds(lambda n: Compaction(carried="so far", first_kept=f"e{n}"), st.integers(0, 12)),
            st.builds(lambda n: Retracted((f"e{n}",)), st.integers(0, 12)),
            st.builds(lambda n: Rewound(f"e{n}"), st.integers(0, 12)),
        ),
        max_size=14,
    ),
    st.sets(st.integers(0, 13)),
)
@examples(300)
def test_following_a_conversation_gives_the_same_as_measuring_it_once(log: list[Body], measured: set[int]) -> None:
    made = Conversation()
    for number, body in enumerate(log):
        extend(made, body)
        if number in measured:
            tokens(made)
    for model in (MODEL, OTHER):
        assert tokens(made, model) == tokens(Conversation(made.entries), model)


@pytest.mark.slow
@pytest.mark.parametrize("counted", [0, 10**8], ids=["a provider that never counts", "one that does"])
def test_measuring_again_costs_what_is_new(counted: int) -> None:
    made = Conversation(
        Entry(f"e{n}", f"e{n - 1}" if n else None, 0.0, said("x" * 1_000) if n % 2 else reply(counted))
        for n in range(20_000)
    )
    tokens(made)
    start = time.perf_counter()
    for _ in range(200):
        extend(made, said("y" * 1_000))
        tokens(made)
    assert time.perf_counter() - start < 2  # measuring all of it each time takes 4 s
