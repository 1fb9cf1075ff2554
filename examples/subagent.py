"""Hands a question to a second agent with instructions of its own: it is a tool of the first."""

from scripted import scripted

from agentcli import Agent, query, tool

FIRST = scripted({"tool_calls": [{"name": "ask_lawyer", "input": {"question": "May I?"}}]}, {"text": "{{last_result}}"})


@tool
async def ask_lawyer(question: str) -> str:
    """Answers questions about law."""
    done = await query(question, model=scripted({"text": "You may."}), instructions="You are a lawyer. Be brief.")
    return done.text


print(Agent(FIRST, tools=[ask_lawyer]).run_sync("May I copy this page?").text)
