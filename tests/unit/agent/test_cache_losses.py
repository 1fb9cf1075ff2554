"""Losses of the prompt cache, for providers that count what is written and for those that do not."""

from __future__ import annotations

import pytest
from msgspec import structs

from agentcli.agent.commands.model import CacheLoss, cache_losses
from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, User
from agentcli.conversation.schema import from_record, to_record
from agentcli.llm.messages import Text, Usage
from agentcli.llm.models import ModelInfo, Prices

AUTOMATIC = Prices(input=2.0, output=8.0, cache_read=0.2)
EXPLICIT = Prices(input=2.0, output=8.0, cache_write=2.5, cache_read=0.2)


def reply(usage: Usage, *, model: str = "m") -> Assistant:
    return Assistant(content=(Text("Hi."),), provider="p", model=model, usage=usage, prefix="a.b")


def losses(*bodies: Body, prices: Prices | None = AUTOMATIC) -> list[CacheLoss]:
    """The losses of a branch, beside one that was left."""
    entries = [Entry(str(n), str(n - 1), 1_000.0, body) for n, body in enumerate(bodies)]
    entries[-1] = Entry("last", entries[-1].parent_id, 1_010.0, bodies[-1])
    entries.insert(-1, Entry("left", "0", 1_000.0, User((Text("left"),))))
    return list(cache_losses(entries, lambda name: ModelInfo("m", "p", prices=prices)))


def test_a_hit_is_not_a_loss() -> None:
    before = reply(Usage(10, 5, cache_creation_input_tokens=2_000, cache_read_input_tokens=1_000))
    now = reply(Usage(10, 5, cache_creation_input_tokens=500, cache_read_input_tokens=3_000))
    assert losses(before, now, prices=EXPLICIT) == []
    assert losses(reply(Usage(5_000, 5)), reply(Usage(1_000, 5, cache_read_input_tokens=4_864))) == []  # grows in steps


def test_a_loss_has_its_price() -> None:
    (lost,) = losses(reply(Usage(5_000, 5)), reply(Usage(6_000, 5)))
    assert (lost.held, lost.lost, lost.usd) == (4_992, 4_992, pytest.approx(4_992 * 1.8e-6))
    (lost,) = losses(reply(Usage(100, cache_read_input_tokens=4_900)), reply(Usage(5_500)), prices=None)
    assert (lost.held, lost.usd) == (4_992, None)


@pytest.mark.parametrize(
    "bodies",
    [
        [reply(Usage(5_000), model="other"), reply(Usage(5_500))],
        [reply(Usage(5_000)), Compaction(carried="Earlier: …"), reply(Usage(2_000))],
        [reply(Usage(5_000)), *[User((Text("on"),))] * 50, reply(Usage(5_500))],
        [reply(Usage(5_000)), structs.replace(reply(Usage(9_000)), is_estimated=True), reply(Usage(5_500))],
        [reply(Usage(5_000)), reply(Usage()), reply(Usage(5_500))],
    ],
)
def test_a_reply_is_compared_with_the_newest_counted_one_before_it(bodies: list[Body]) -> None:
    (loss,) = losses(*bodies)
    assert (loss.held, loss.lost) == (min(4_992, loss.reply.usage.prompt_tokens),) * 2


def test_a_reply_that_broke_off_is_no_loss_but_what_it_left_is_held() -> None:
    broken = structs.replace(reply(Usage(6_000)), stop_reason="interrupted")
    assert losses(reply(Usage(5_000)), broken) == []
    (loss,) = losses(reply(Usage(5_000)), broken, reply(Usage(7_000)))
    assert loss.held == 5_888


def test_servers_without_a_cache_lose_nothing() -> None:
    for prices in (None, Prices()):
        assert losses(reply(Usage(5_000)), reply(Usage(5_500)), prices=prices) == []


def test_a_log_that_has_losses_in_its_entries_is_still_read() -> None:
    record = to_record(Entry("a", None, 0.0, reply(Usage(5_000))))
    record["body"] = record["body"].replace(
        '"prefix"', '"cache":{"expected":9,"lost_tokens":9,"cause":"messages"},"prefix"'
    )
    assert from_record(record).body == reply(Usage(5_000))
