"""Tests a program without a network: a scripted model plays the replies, and keeps what it was asked."""

from agentcli import Agent, tool
from agentcli.testing import ScriptedCall, ScriptedModel, ScriptedReply


@tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It rains in {city}."


def test_the_answer_uses_the_tool() -> None:
    model = ScriptedModel([ScriptedReply(tool_calls=(ScriptedCall("weather", {"city": "Oslo"}),)), "Take an umbrella."])
    assert Agent(model, tools=[weather]).run_sync("How is the weather?").text == "Take an umbrella."
    assert "It rains in Oslo." in str(model.requests[1].messages[-1])


test_the_answer_uses_the_tool()  # pytest calls it, too
print("passed")
