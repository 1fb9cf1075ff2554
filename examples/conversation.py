"""Remembers what was said, also in the next process: the store keeps the conversation under an id of your own."""

from scripted import scripted

from agentcli import Agent, AgentOptions
from agentcli.stores import MemorySessions

OPTIONS = AgentOptions(store=MemorySessions())  # or SqliteSessions(Path("chats.db")), which outlasts the process

first = Agent(scripted({"text": "Hello, Ann."}), conversation="chat-1", options=OPTIONS)
print(first.run_sync("My name is Ann.").text)
later = Agent(scripted({"text": "You are Ann."}), conversation="chat-1", options=OPTIONS)
print(later.run_sync("What is my name?").text)
