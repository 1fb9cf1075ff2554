"""Holds the final answer of a prompt to a JSON Schema: finds the value in its text, and says what does not fit."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import msgspec
from referencing.exceptions import Unresolvable

from agentcli.errors import UsageError

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
_LONGEST_PROBLEM = 500  # characters of what a validator says


class AnswerSchema:
    """`schema` is a JSON Schema, by default of 2020-12. Raises `UsageError` for what is none."""

    most_tries = 2  # how often the model is asked again

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        try:
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            kind.check_schema(schema)
            self._validator = kind(schema)
            list(self._validator.iter_errors(None))  # what it refers to has to be there
        except jsonschema.SchemaError as error:
            raise UsageError(f"--json-schema is no JSON Schema: {error.message[:_LONGEST_PROBLEM]}.") from error
        except (Unresolvable, RecursionError) as error:
            raise UsageError(f"--json-schema refers to what is not in it, or to itself: {error}.") from error

    @property
    def request(self) -> str:
        """What the model is told with the prompt."""
        shown = msgspec.json.encode(self.schema).decode()
        return f"Your final answer has to be one JSON value and nothing else. It has to fit this JSON Schema: {shown}"

    def value(self, text: str) -> Any:
        """The value that a text is, or that stands in its only block of code. Raises `ValueError`."""
        blocks = _FENCED.findall(text)
        try:
            value = msgspec.json.decode((blocks[0] if len(blocks) == 1 else text).strip())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"it is no JSON ({error})") from error
        try:
            problem = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except (Unresolvable, RecursionError) as error:
            raise ValueError(f"it cannot be held against the schema ({error})") from error
        if problem:
            raise ValueError(f"{problem.json_path}: {problem.message[:_LONGEST_PROBLEM]}")
        return value

    def problem(self, text: str) -> str:
        """Why a text does not fit; empty where it does."""
        try:
            self.value(text)
        except ValueError as error:
            return str(error)
        return ""

    @staticmethod
    def again(problem: str) -> str:
        """What the model is told of an answer that does not fit."""
        return (
            f"Your answer does not fit the JSON Schema: {problem}. Answer again, with the JSON value and nothing else."
        )
