"""Events name the agent they come from."""

from __future__ import annotations

from pathlib import Path as Folder

from agentcli.agent.event_queue import EventQueue
from agentcli.agent.events import TextDelta
from tests.unit.agent.stage import on_stage


async def test_every_event_of_a_session_names_its_agent(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "One."}, {"text": "Two."}]) as stage:
        await stage.ask("first")
        assert {event.agent_id for event in stage.events} == {"main"}
        seen = len(stage.events)
        stage.session.runtime.calls.agent_id = "helper_1"
        await stage.ask("second")
        assert {event.agent_id for event in stage.events[seen:]} == {"helper_1"}


async def test_deltas_of_two_agents_are_not_joined() -> None:
    queue = EventQueue()
    for event in (TextDelta("a"), TextDelta("b"), TextDelta("c", agent_id="other"), TextDelta("d", agent_id="other")):
        queue.put(event)
    assert await queue.get_all() == [TextDelta("ab"), TextDelta("cd", agent_id="other")]
