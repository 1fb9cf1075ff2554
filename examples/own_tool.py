"""Gives the model a function as a tool, and follows the answer as it comes."""

import asyncio

from scripted import scripted

from agentcli import Agent, TextDelta, ToolFinished, tool

MODEL = scripted(
    {"tool_calls": [{"name": "weather", "input": {"city": "Oslo"}}]},
    {"text": "In Oslo: {{last_result}}"},
)


@tool
def weather(city: str, days: int = 1) -> str:
    """Tells the weather of a city."""
    return f"{days} days of sun in {city}"


async def main() -> None:
    async with Agent(MODEL, tools=[weather]) as agent:
        async for event in agent.stream("What is the weather in Oslo?"):
            match event:
                case TextDelta(text):
                    print(text, end="")
                case ToolFinished(name=name, result=result):
                    print(f"[{name}: {result.content}]")
    print()


asyncio.run(main())
