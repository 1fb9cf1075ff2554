"""Records the metrics: tokens, durations, cost, calls and turns."""

from __future__ import annotations

from opentelemetry.metrics import Histogram, Meter

from agentcli.infra.telemetry.attributes import Attributes
from agentcli.llm.messages import Usage

# The buckets that the conventions advise.
_TOKENS = [4.0**power for power in range(14)]
_SECONDS = [0.01 * 2**power for power in range(14)]


class Metrics:
    """The instruments. Attributes come without secrets."""

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, about: str, buckets: list[float]) -> Histogram:
            return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=buckets)

        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of a request", _TOKENS)
        self._duration = histogram(
            "gen_ai.client.operation.duration", "s", "How long a request took, retries included", _SECONDS
        )
        self._first_chunk = histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "How long a reply took to begin", _SECONDS
        )
        self._cost = meter.create_counter("agentcli.cost", "USD", "What requests cost")
        self._calls = meter.create_counter("agentcli.tool.calls", "{call}", "Calls of tools")
        self._turns = meter.create_counter("agentcli.turns", "{turn}", "Prompts that were answered, or failed")

    def request(
        self, about: Attributes, *, seconds: float, first_chunk: float | None, usage: Usage, usd: float
    ) -> None:
        """A request that has ended; counts of tokens are those of its tries together."""
        self._duration.record(seconds, about)
        if first_chunk is not None:
            self._first_chunk.record(first_chunk, about)
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.output_tokens)):
            if tokens:
                self._tokens.record(tokens, {**about, "gen_ai.token.type": kind})
        if usd:
            self._cost.add(usd, about)

    def call(self, about: Attributes) -> None:
        self._calls.add(1, about)

    def turn(self, about: Attributes) -> None:
        self._turns.add(1, about)
