"""What a GGUF file says about itself decides which chat template it is run with."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from agentcli.errors import UserError
from agentcli.llm.local_server.chat_template import chat_template_for
from agentcli.llm.local_server.gguf import GgufHeader, read_header
from agentcli.llm.local_server.server import acquire


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(*entries: bytes, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) if count is None else count) + b"".join(entries)


def string_entry(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def number_entry(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def tags_entry(key: str, *values: str) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


CODER = (
    string_entry("general.architecture", "qwen2"),
    string_entry("general.name", "Qwen2.5 Coder 1.5B Instruct GGUF"),
    string_entry("general.finetune", "Instruct-GGUF"),
    string_entry("general.basename", "Qwen2.5-Coder"),
    string_entry("general.size_label", "1.5B"),
    tags_entry("general.tags", "code", "chat"),
    number_entry("qwen2.context_length", 32768),
)


def test_the_facts_before_the_tokenizer_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*CODER, text("tokenizer.ggml.tokens"), count=400))
    assert read_header(path) == GgufHeader(
        architecture="qwen2",
        name="Qwen2.5 Coder 1.5B Instruct GGUF",
        base_name="Qwen2.5-Coder",
        fine_tune="Instruct-GGUF",
        size_label="1.5B",
        context_length=32768,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF"),
        (b"PK\x03\x04 a zip file", "GGUF mark"),
        (b"GGUF\x03\x00", "ends too early"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 1), "version 99"),
        (gguf(struct.pack("<Q", 1 << 40)), "text of"),
        (gguf(text("a") + struct.pack("<I", 77)), "value type 77"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        asyncio.run(acquire(model_path=path, state_folder=tmp_path / "state"))
    assert str(path) in str(caught.value)


def test_a_missing_model_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no model file"):
        asyncio.run(acquire(model_path=tmp_path / "absent.gguf", state_folder=tmp_path / "state"))


def test_only_the_measured_model_gets_our_template(tmp_path: Path) -> None:
    path = tmp_path / "any-name.gguf"
    path.write_bytes(gguf(*CODER))
    template = chat_template_for(read_header(path))
    assert "```tool" in (template or "")
    path.write_bytes(gguf(string_entry("general.architecture", "llama"), string_entry("general.name", "Other")))
    assert chat_template_for(read_header(path)) is None


def test_an_engine_that_cannot_load_the_model_is_a_clear_error_with_its_log(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "broken.gguf"
    path.write_bytes(gguf(*CODER))
    with pytest.raises(UserError, match=r"ended while starting[\s\S]*broken\.gguf"):
        asyncio.run(acquire(model_path=path, state_folder=tmp_path / "state"))
    assert not list((tmp_path / "state" / "local-server").glob("*.json"))
