"""What the prompt cache could have given, for providers that count what is written and for those that do not."""

from __future__ import annotations

import pytest

from agentcli.conversation.cache_ledger import Asked, cache_use, cold_read_usd
from agentcli.conversation.entries import Assistant, Body, CacheUse, Compaction, Entry, User
from agentcli.llm.messages import Text, Usage
from agentcli.llm.models import ModelInfo, Prices

AUTOMATIC = ModelInfo("m", "p", prices=Prices(input=2.0, output=8.0, cache_read=0.2))
EXPLICIT = ModelInfo("m", "p", prices=Prices(input=2.0, output=8.0, cache_write=2.5, cache_read=0.2))


def path(*bodies: Body, at: float = 1_000.0) -> list[Entry]:
    return [Entry(str(number), None, at, body) for number, body in enumerate(bodies)]


def reply(usage: Usage, *, model: str = "m", prefix: str = "a.b") -> Assistant:
    return Assistant((Text("Hi."),), "p", model, usage, prefix=prefix)


def asked(usage: Usage, *, sent: float = 1_010.0, prefix: str = "a.b", is_changed: bool = False) -> Asked:
    return Asked("p/m", prefix, sent, usage, is_changed)


def test_a_hit_is_what_was_expected() -> None:
    before = reply(Usage(10, 5, cache_creation_input_tokens=2_000, cache_read_input_tokens=1_000))
    now = asked(Usage(10, 5, cache_creation_input_tokens=500, cache_read_input_tokens=3_000))
    assert cache_use(path(before), now, EXPLICIT) == CacheUse(3_000)


def test_an_automatic_cache_grows_in_steps() -> None:
    before = reply(Usage(5_000, 5))
    assert cache_use(path(before), asked(Usage(1_000, 5, cache_read_input_tokens=4_864)), AUTOMATIC) == CacheUse(4_992)
    lost = cache_use(path(before), asked(Usage(6_000, 5)), AUTOMATIC)
    assert lost == CacheUse(4_992, 4_992, pytest.approx(4_992 * 1.8e-6), "provider")


@pytest.mark.parametrize(
    ("bodies", "now", "cause"),
    [
        ([reply(Usage(5_000), model="other")], asked(Usage(5_500)), "model"),
        ([reply(Usage(5_000)), Compaction("Earlier: …")], asked(Usage(2_000)), "compaction"),
        ([reply(Usage(5_000), prefix="x.b")], asked(Usage(5_500)), "tools"),
        ([reply(Usage(5_000), prefix="a.x")], asked(Usage(5_500)), "system"),
        ([reply(Usage(5_000))], asked(Usage(5_500), sent=1_301.0), "time to live"),
        ([reply(Usage(5_000))], asked(Usage(5_500), is_changed=True), "messages"),
        ([reply(Usage(5_000)), User((Text("on"),))], asked(Usage(5_500)), "provider"),
        ([reply(Usage(5_000), prefix="")], asked(Usage(5_500)), "provider"),  # of a log without hashes
    ],
)
def test_each_loss_has_its_cause(bodies: list[Body], now: Asked, cause: str) -> None:
    use = cache_use(path(*bodies), now, AUTOMATIC)
    assert use is not None
    assert (use.cause, use.lost_tokens > 0) == (cause, True)
    assert use.expected <= now.usage.prompt_tokens


def test_nothing_is_said_of_first_requests_and_of_servers_without_a_cache() -> None:
    assert cache_use(path(User((Text("go"),))), asked(Usage(5_000)), AUTOMATIC) is None
    unpriced = ModelInfo("m", "p")
    assert cache_use(path(reply(Usage(5_000))), asked(Usage(5_500)), unpriced) is None
    free = ModelInfo("m", "p", prices=Prices())
    assert cache_use(path(reply(Usage(5_000))), asked(Usage(5_500)), free) is None
    seen = cache_use(path(reply(Usage(100, cache_read_input_tokens=4_900))), asked(Usage(5_500)), unpriced)
    assert seen == CacheUse(4_992, 4_992, None, "provider")


def test_reading_again_costs_the_dearest_way_of_sending() -> None:
    assert cold_read_usd(100_000, EXPLICIT) == pytest.approx(0.25)
    assert cold_read_usd(100_000, AUTOMATIC) == pytest.approx(0.2)
    assert cold_read_usd(100_000, ModelInfo("m", "p")) is None
