"""Puts a model of one's own behind the agent: a class with the five members of `Provider`."""

import asyncio
from collections.abc import AsyncGenerator

from agentcli import Agent
from agentcli.providers import Done, Health, Message, Request, StreamEvent, Text, TextDelta, TokenCount, Usage


class Echo:
    """Says what it was asked."""

    name = "echo"
    model = "loud"

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        said = request.messages[-1].text.upper()
        yield TextDelta(said)
        yield Done(Message("assistant", (Text(said),)), "end_turn", Usage(output_tokens=1), self.model)

    async def count_tokens(self, request: Request) -> TokenCount:
        return TokenCount(sum(len(message.text) // 4 for message in request.messages), exact=False)

    async def health_check(self) -> Health:
        return Health(True, "always there")

    async def aclose(self) -> None: ...


async def main() -> None:
    async with Agent(Echo()) as agent:
        print((await agent.run("hello?")).text.splitlines()[-1])


asyncio.run(main())
