"""Prints the answer as it comes."""

import asyncio

from scripted import scripted

from agentcli import Agent, TextDelta

MODEL = scripted({"text": "A tree is a hash of its leaves."})


async def main() -> None:
    async for event in Agent(MODEL).stream("What is a Merkle tree?"):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)


asyncio.run(main())
