"""Decides in the program which calls may run, where the command line would ask a person."""

import asyncio
import tempfile

from scripted import scripted

from agentcli import Agent, QuestionEvent

MODEL = scripted(
    {"tool_calls": [{"name": "file_write", "input": {"path": "notes.txt", "content": "buy milk\n"}}]},
    {"tool_calls": [{"name": "file_write", "input": {"path": "secret.txt", "content": "…"}}]},
    {"text": "One is written."},
)


async def decide(asked: QuestionEvent) -> bool:
    print(f"{asked.title}: {asked.reason}")
    return "notes.txt" in asked.title


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Agent(MODEL, cwd=folder, approve=decide) as agent:
            done = await agent.run("Write two files.")
    print(done.text, "Refused:", [denial.call.input["path"] for denial in done.denials])


asyncio.run(main())
