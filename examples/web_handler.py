"""Makes an agent for each request of a web server; the conversations are kept in a store of one's own."""

import asyncio

from scripted import scripted

from agentcli import Agent, AgentOptions


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


async def handle(store: Conversations, user: str, text: str, model: str) -> str:
    async with Agent(model, conversation=user, options=AgentOptions(store=store, user_id=user)) as agent:
        return (await agent.run(text)).text


async def main() -> None:
    store = Conversations()
    print(await handle(store, "ann", "My name is Ann.", scripted({"text": "Hello, Ann."})))
    print(await handle(store, "bob", "Who am I?", scripted({"text": "You have not said so yet."})))
    print(await handle(store, "ann", "Who am I?", scripted({"text": "You are Ann."})))


asyncio.run(main())
