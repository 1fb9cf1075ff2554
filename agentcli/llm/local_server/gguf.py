"""Reads the first facts out of a GGUF model file: which model it is and how long its context may be.

Only the metadata before the tokenizer is read (a few KB), layout after the GGUF specification, version 2 and
3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

from agentcli.errors import UserError
from agentcli.version import __version__

_SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST_STRING = 1 << 20
_LONGEST_ARRAY = 10_000

Value = str | int | float | bool | None


class GgufHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says about itself; empty or 0 where it says nothing."""

    architecture: str = ""
    name: str = ""
    base_name: str = ""
    fine_tune: str = ""
    size_label: str = ""
    context_length: int = 0
    """Longest context in tokens the model was trained for."""


def stamp_of(path: Path) -> str:
    """Tells a file, as this version reads it, from every other one that has been in its place; empty without one."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{__version__} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def read_header(path: Path) -> GgufHeader:
    """Raises UserError when the file is missing, unreadable or not GGUF; the message names the path and what
    to do.
    """
    try:
        with path.open("rb") as file:
            values = _read_values(file)
    except FileNotFoundError as error:
        raise UserError(f"There is no model file {path}. Name an existing .gguf file.") from error
    except OSError as error:
        raise UserError(f"The model file {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, struct.error) as error:
        raise UserError(f"{path} is not a GGUF model file ({error}). Only GGUF files can be run locally.") from error
    architecture = str(values.get("general.architecture", ""))
    context = values.get(f"{architecture}.context_length", 0)
    return GgufHeader(
        architecture=architecture,
        name=str(values.get("general.name", "")),
        base_name=str(values.get("general.basename", "")),
        fine_tune=str(values.get("general.finetune", "")),
        size_label=str(values.get("general.size_label", "")),
        context_length=context if isinstance(context, int) else 0,
    )


def _read_values(file: BinaryIO) -> dict[str, Value]:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with the GGUF mark")
    version, _tensors, count = struct.unpack("<IQQ", _read(file, 20))
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not known")
    values: dict[str, Value] = {}
    for _ in range(count):
        key = _read_string(file)
        if key.startswith("tokenizer."):  # the long arrays; what is wanted stands before them
            break
        values[key] = _read_value(file, _read_number(file, "<I"))
    return values


def _read_value(file: BinaryIO, kind: int) -> Value:
    if kind == _STRING:
        return _read_string(file)
    if kind == _ARRAY:
        element, length = _read_number(file, "<I"), _read_number(file, "<Q")
        if length > _LONGEST_ARRAY:
            raise ValueError(f"an array of {length} values stands where short facts are expected")
        for _ in range(length):
            _read_value(file, element)
        return None
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind} is not known")
    layout = _SCALARS[kind]
    value: Value = struct.unpack(layout, _read(file, struct.calcsize(layout)))[0]
    return value


def _read_string(file: BinaryIO) -> str:
    length = _read_number(file, "<Q")
    if length > _LONGEST_STRING:
        raise ValueError(f"a text of {length} bytes stands where short facts are expected")
    return _read(file, length).decode("utf-8", errors="replace")


def _read_number(file: BinaryIO, layout: str) -> int:
    return int(struct.unpack(layout, _read(file, struct.calcsize(layout)))[0])


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it ends too early")
    return data
