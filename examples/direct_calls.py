"""Calls tools without a model: judged, confined and recorded like calls of the model's."""

import asyncio
import tempfile

from scripted import scripted

from agentcli import Agent

MODEL = scripted({"text": "nobody asks me"})


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Agent(MODEL, cwd=folder, permissions="acceptEdits") as agent:
            write = {"path": "a.txt", "content": "hello\n"}
            for _ in range(2):  # made once, told twice
                made = await agent.call_tool("file_write", write, idempotency_key="order-17", caller_id="shop")
                print(made.summary, made.error)
            read = await agent.call_tool("file_read", {"path": "a.txt"}, timeout_s=5)
            print(read.structured)


asyncio.run(main())
