"""Gives the model a function as a tool."""

from scripted import scripted

from agentcli import Agent, tool

MODEL = scripted({"tool_calls": [{"name": "weather", "input": {"city": "Oslo"}}]}, {"text": "{{last_result}}"})


@tool
def weather(city: str, days: int = 1) -> str:
    """Tells the weather of a city."""
    return f"{days} days of sun in {city}"


print(Agent(MODEL, tools=[weather]).run_sync("What is the weather in Oslo?").text)
