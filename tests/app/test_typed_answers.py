"""Answers with a type: `Agent(output_type=…)` asks until one fits, and gives an instance."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pydantic
import pytest
from msgspec import Meta, Struct, defstruct

from agentcli import Agent, AgentFailed, AgentOptions, Done, TurnFailed, query
from agentcli.errors import UsageError
from agentcli.library.output import output_schema
from tests.app.conftest import MakeModel
from tests.app.running import call
from tests.conformance.replies import chat_reply
from tests.conformance.servers import chat_server

pytestmark = pytest.mark.usefixtures("library_home")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class City:
    """A place where people live."""

    name: str
    founded: date
    color: Color = Color.RED
    twins: list[City] = field(default_factory=list)
    mayor: str | None = None


class Size(Struct):
    people: Annotated[int, Meta(ge=0, description="Inhabitants")]


class Row(TypedDict):
    key: Literal["a", "b"]
    value: float


class Invoice(pydantic.BaseModel):
    total: float = pydantic.Field(gt=0)
    lines: list[Invoice] = []


ONE_TURN = AgentOptions(settings={"limits": {"max_turns": 1}})
OSLO = {"name": "Oslo", "founded": "1048-01-01", "color": "blue", "twins": [], "mayor": None}


@pytest.mark.parametrize(
    ("kind", "answer", "output"),
    [
        (City, OSLO, City("Oslo", date(1048, 1, 1), Color.BLUE)),
        (Size, {"people": 5}, Size(5)),
        (Row, {"key": "a", "value": 1.5}, {"key": "a", "value": 1.5}),
        (Invoice, {"total": 2, "lines": []}, Invoice(total=2)),
        (list[Invoice], {"value": [{"total": 2, "lines": []}]}, [Invoice(total=2)]),
        (list[Size], {"value": [{"people": 1}]}, [Size(1)]),
        (list[Size], [{"people": 1}], [Size(1)]),  # without the wrapper, as small models answer
        (int, {"value": 4}, 4),
        (int | str, {"value": "x"}, "x"),
        (City | Size, {"value": {"Size": {"people": 2}}}, Size(2)),
        (tuple[int, str], {"value": [1, "a"]}, (1, "a")),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
    ],
)
async def test_an_answer_becomes_an_instance_of_the_type(
    model: MakeModel, work: Path, kind: Any, answer: Any, output: Any
) -> None:
    async with Agent(model({"text": json.dumps(answer)}), cwd=work, output_type=kind) as agent:
        done = await agent.run("go")
    assert done.output == output
    assert type(done.output) is type(output)
    assert done.turns == 1


def objects_in(schema: Any) -> list[dict[str, Any]]:
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    found = [each for part in parts for each in objects_in(part)]
    return [schema, *found] if isinstance(schema, dict) and "properties" in schema else found


STRICT_KEYS = {
    "type", "description", "enum", "const", "format", "$ref", "anyOf", "items", "properties", "required",
    "additionalProperties", "$defs",
}  # fmt: skip


@pytest.mark.parametrize("kind", [City, Size, Row, Invoice, list[City], int, City | Size, tuple[int, str]])
def test_schemas_are_in_the_form_that_strict_modes_accept(kind: Any) -> None:
    """OpenAI: an object on top, closed objects, all fields required, a reference alone; Anthropic: no limits."""
    schema = output_schema(kind).schema
    assert schema["type"] == "object"

    def check(part: dict[str, Any]) -> None:
        assert part.keys() <= STRICT_KEYS
        assert part.keys() & {"type", "anyOf", "$ref"}
        assert "$ref" not in part or len(part) == 1
        if "properties" in part:
            assert (part["required"], part["additionalProperties"]) == ([*part["properties"]], False)
        items = [part["items"]] if "items" in part else []
        inner = [*part.get("properties", {}).values(), *part.get("$defs", {}).values(), *part.get("anyOf", [])]
        for each in (*inner, *items):
            check(each)

    check(schema)


def test_field_docs_and_limits_are_words_of_the_schema() -> None:
    schema = output_schema(Size).schema
    assert schema["properties"]["people"] == {"type": "integer", "description": "Inhabitants; minimum: 0"}
    assert output_schema(City).schema["description"] == "A place where people live."


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(model: MakeModel, work: Path) -> None:
    script = model({"text": "Two people."}, {"text": '{"people": -2}'}, {"text": '{"people": 2}'})
    async with Agent(script, cwd=work, output_type=Size) as agent:
        done = await agent.run("How many?")
        session = await agent.session()
        provider, _ = await session.runtime.models.resolve(session.state)
    assert (done.output, done.turns) == (Size(2), 3)
    said = [request.messages[-1].text for request in provider.requests]
    assert "must match this JSON Schema" in said[0]
    assert "it is not valid JSON" in said[1]
    assert "Expected `int` >= 0 - at `$.people`" in said[2]


def test_an_answer_that_never_fits_fails_with_the_reason_and_the_text(model: MakeModel, work: Path) -> None:
    agent = Agent(model(*[{"text": '{"total": 0}'}] * 3), cwd=work, output_type=Invoice)
    with pytest.raises(AgentFailed, match=r"(?s)does not fit the output type: .*greater than 0.*: {\"total\": 0}$"):
        agent.run_sync("How much?")


async def test_a_turn_that_ends_early_has_no_output(model: MakeModel, work: Path) -> None:
    script = model({"tool_calls": [call("file_list")]})
    async with Agent(script, cwd=work, output_type=Size, options=ONE_TURN) as agent:
        with pytest.raises(AgentFailed, match=r"The answer \(max_turns\) does not fit"):
            await agent.run("How many?")


async def test_the_last_event_of_a_stream_has_the_output_after_calls(model: MakeModel, work: Path) -> None:
    script = model({"tool_calls": [call("file_list")]}, {"text": '{"people": 3}'}, *[{"text": "no"}] * 3)
    async with Agent(script, cwd=work, output_type=Size) as agent:
        fits = [event async for event in agent.stream("How many?")]
        misses = [event async for event in agent.stream("Again?")]
    assert isinstance(fits[-1], Done)
    assert fits[-1].output == Size(3)
    assert isinstance(misses[-1], TurnFailed)


async def test_providers_that_can_are_sent_the_schema(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server([chat_reply('{"people": 3}')]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        async with Agent("openai/gpt-6.1-sol", cwd=work, output_type=Size) as agent:
            assert (await agent.run("How many?")).output == Size(3)
        sent = server.requests[0].json["response_format"]["json_schema"]["schema"]
    assert sent == output_schema(Size).schema


def holder(name: str, field_type: type) -> type:
    """Return a struct whose only field is of another struct, which is called `Part` in each of them."""
    return defstruct(name, [("part", defstruct("Part", [("value", field_type)]))])


@pytest.mark.parametrize(
    "kind",
    [
        object,
        list[object],
        {"type": "objct"},
        Callable[[], int],
        City | type("City", (City,), {}),
        holder("Left", int) | holder("Right", str),
    ],
)
def test_a_type_without_a_schema_is_an_error_before_any_request(work: Path, kind: Any) -> None:
    with pytest.raises(UsageError, match="output_type"):
        Agent("scripted/none", cwd=work, output_type=kind)


def test_pydantic_is_not_imported_for_other_types() -> None:
    code = (
        "import sys; from agentcli.library.output import output_schema; output_schema(list[int]);"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_single_prompt_has_a_type_too(model: MakeModel, work: Path) -> None:
    done = await query("How many?", model=model({"text": '{"people": 3}'}), cwd=work, output_type=Size)
    assert done.output.people == 3
