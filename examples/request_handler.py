"""Answers requests of a web server, with an agent for each; the conversation of another user cannot be opened."""

import asyncio

from scripted import scripted

from agentcli import Agent, AgentOptions
from agentcli.stores import MemorySessions

STORE = MemorySessions()  # or SqliteSessions, PostgresSessions, or a ConversationStore of your own


async def handle(user: str, chat: str, text: str, model: str) -> str:
    async with Agent(model, conversation=chat, options=AgentOptions(store=STORE, user_id=user)) as agent:
        return (await agent.run(text)).text


print(asyncio.run(handle("ann", "chat-1", "Hello", scripted({"text": "Hello, Ann."}))))
