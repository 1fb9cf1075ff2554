"""Makes an agent for each request of a web server; the conversations are kept in a store of one's own."""

import asyncio
from typing import Any

from scripted import scripted

from agentcli import Agent, AgentOptions
from agentcli.events import ClientResult
from agentcli.providers import ToolSpec


class Conversations:
    """Implements `ConversationStore`; a table of a database would do as well."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def load(self, conversation_id: str) -> bytes | None:
        return self._kept.get(conversation_id)

    async def save(self, conversation_id: str, data: bytes) -> None:
        self._kept[conversation_id] = data

    async def reset(self, conversation_id: str) -> None:
        self._kept.pop(conversation_id, None)


# The browser runs this tool. Its calls end the request; the next one, perhaps in another process, brings the result.
SEAT = ToolSpec(
    "pick_seat", "Lets the user pick a seat.", {"type": "object", "properties": {"row": {"type": "string"}}}
)


async def handle(store: Conversations, user: str, said: str | ClientResult, model: str) -> dict[str, Any]:
    async with Agent(model, conversation=user, options=AgentOptions(store=store, user_id=user)) as agent:
        done = await agent.run(said, tools=[SEAT])
    if done.pending:
        return {"run": [{"id": call.id, "tool": call.name, "input": call.input} for call in done.pending]}
    return {"answer": done.text}


async def main() -> None:
    store = Conversations()
    print(await handle(store, "ann", "My name is Ann.", scripted({"text": "Hello, Ann."})))
    print(await handle(store, "bob", "Who am I?", scripted({"text": "You have not said so yet."})))
    print(await handle(store, "ann", "Who am I?", scripted({"text": "You are Ann."})))
    asking = scripted({"tool_calls": [{"id": "call_1", "name": "pick_seat", "input": {"row": "7"}}]})
    print(await handle(store, "ann", "A seat in row 7, please.", asking))
    print(await handle(store, "ann", ClientResult("call_1", "7A"), scripted({"text": "You sit in 7A."})))


asyncio.run(main())
