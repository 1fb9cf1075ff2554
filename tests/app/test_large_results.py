"""Large results through the library: told in a line, kept whole, and cleaned as the settings say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, tool
from agentcli.agent.events import ToolFinished
from agentcli.llm.messages import Text
from agentcli.tools.tool import ToolOutput


@tool
def customers() -> ToolOutput:
    """Lists all customers."""
    rows = [{"id": number, "name": f"customer {number}", "note": "x" * 300} for number in range(3_214)]
    return ToolOutput(structured=rows)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def script(folder: Path, *replies: dict[str, Any]) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return f"scripted/{path}"


async def results(folder: Path, *calls: dict[str, Any], **settings: Any) -> list[str]:
    replies = [{"tool_calls": [one]} for one in calls]
    model = script(folder, *replies, {"text": "Done."})
    async with Agent(model, cwd=folder, tools=[customers], options=AgentOptions(settings=settings)) as agent:
        events = [event async for event in agent.stream("list the customers")]
    return [str(event.result.content) for event in events if isinstance(event, ToolFinished)]


ALL = {"name": "customers", "input": {}, "id": "c1"}


async def test_a_large_result_is_summed_up_and_can_be_read_on(home: Path, tmp_path: Path) -> None:
    more = {"name": "read_more", "input": {"result_id": "c1", "page": 2}}
    first, page = await results(tmp_path, ALL, more, tools={"output_level": "full"})
    assert "open it with file_read: 1 line, the longest has" in first
    assert page.endswith("]")
    assert '"note":"xxx' in page


async def test_a_short_view_of_a_large_result_says_where_all_of_it_is(home: Path, tmp_path: Path) -> None:
    more = {"name": "read_more", "input": {"result_id": "c1", "page": 1}}
    first, page = await results(tmp_path, ALL, more)
    assert first.startswith("Found 3214 items:")
    assert 'read_more with result_id="c1" and page=1 shows all of it, in ' in first
    assert "open it with file_read: 1 line, the longest has" in first
    assert page.startswith('[{"id":0,"name":"customer 0"')


@pytest.mark.parametrize(("settings", "left"), [({}, 1), ({"max_age_hours": 1e-9}, 0), ({"max_size_gb": 1e-6}, 0)])
async def test_the_settings_say_how_long_it_is_kept(
    home: Path, tmp_path: Path, settings: dict[str, float], left: int
) -> None:
    await results(tmp_path, ALL, data={"clean_every_minutes": 0, **settings})
    assert len([path for path in (home / "state" / "data").glob("??/*") if path.is_file()]) == left


@pytest.mark.parametrize(
    ("size", "count"), [(30_000, 1), (30_001, 2), (88_000, 3)], ids=["as large as one may be", "a byte more", "more"]
)
@pytest.mark.parametrize("form", [lambda text: text, lambda text: [Text(text)]], ids=["text", "blocks"])
async def test_what_is_larger_than_30_000_bytes_is_read_page_by_page(
    home: Path, tmp_path: Path, size: int, count: int, form: Any
) -> None:
    lines = f"{'文' * 33}\n" * (size // 100)  # of 100 bytes each
    text = lines + "x" * (size - len(lines.encode()))

    @tool
    def long() -> Any:
        """Returns much."""
        return form(text)

    async with Agent(script(tmp_path), cwd=tmp_path, tools=[long]) as agent:
        first = await agent.call_tool("long", {})
        pages = [first.result.text]
        for page in range(2, count + 1):
            pages.append((await agent.call_tool("read_more", {"result_id": first.id, "page": page})).result.text)
    assert ("read_more" in pages[0]) == (count > 1)
    assert all(len(page.encode()) <= 30_000 for page in pages)
    assert count == 1 or f"[page 1 of {count}; " in pages[0]
    whole = pages[0] if count == 1 else "\n".join(page.rpartition("\n[")[0] for page in pages)
    assert whole.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    ("name", "input"),
    [
        ("file_list", {"path": "many"}),
        ("grep_search", {"pattern": "hit", "path": "many"}),
        ("grep_search", {"pattern": "hit", "path": "many", "context": 1}),
        ("grep_search", {"pattern": "hit", "path": "many", "output_mode": "files"}),
    ],
)
async def test_the_full_level_leaves_out_no_result(home: Path, tmp_path: Path, name: str, input: Any) -> None:
    (tmp_path / "many").mkdir()
    for number in range(150):
        line = "." * 600 if number == 0 else ""
        (tmp_path / "many" / f"{number:03}.txt").write_text(f"hit {line}\n")
    async with Agent(script(tmp_path), cwd=tmp_path) as agent:
        standard = (await agent.call_tool(name, input)).result.text
        full = (await agent.call_tool(name, input | {"output_level": "full"})).result.text
        few = (await agent.call_tool(name, input | {"output_level": "full", "limit": 5})).result.text
    assert "[50 more]" in standard
    assert all(f"{number:03}.txt" in full for number in range(150))
    assert " more" not in full
    assert "[145 more]" in few
