"""Where providers are found, and the addresses they are reached at."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agentcli.llm.http import HttpClient
from agentcli.llm.provider import Provider
from agentcli.llm.providers.anthropic import AnthropicProvider, CloudProvider
from agentcli.llm.providers.local import LocalProvider
from agentcli.llm.providers.ollama import OllamaProvider
from agentcli.llm.providers.openai_compat import OpenAICompatProvider, presets
from agentcli.llm.providers.scripted import ScriptedProvider
from agentcli.models.choice import Models
from agentcli.settings.files import find_paths
from agentcli.settings.load import load_config
from tests.conformance.backends import CHAT_BACKENDS
from tests.conformance.reading import hear
from tests.conformance.servers import chat_server


@pytest.mark.parametrize(
    "made", [AnthropicProvider, CloudProvider, LocalProvider, OllamaProvider, OpenAICompatProvider, ScriptedProvider]
)
def test_every_provider_has_the_members_of_the_protocol(made: type) -> None:
    members = {name for name in vars(Provider) if not name.startswith("_")}
    assert members == {"name", "model", "stream", "count_tokens", "health_check", "aclose"}
    assert all(hasattr(made, member) for member in members - {"name", "model"})  # `BaseProvider` sets these two


def test_naming_the_providers_imports_none_of_them() -> None:
    told = "import sys, agentcli.llm.models; print('httpx2' in sys.modules, 'anthropic' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]


def test_no_provider_imports_a_vendor_s_sdk() -> None:
    told = (
        "import sys\nfrom agentcli.llm.providers import anthropic, ollama, openai_compat, scripted\n"
        "print([n for n in ('anthropic', 'openai', 'ollama', 'pydantic', 'tiktoken') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_each_model_has_one_provider_until_its_key_changes(tmp_path: Path) -> None:
    models = Models(load_config(tmp_path, {}, paths=find_paths(str(tmp_path))))
    one, other = (models.provider(f"lmstudio/{model}") for model in "ab")
    assert models.provider("lmstudio/a") is one is not other
    models.forget("lmstudio")
    assert models.provider("lmstudio/a") is not one

    async def close_twice() -> None:
        await models.aclose()
        await models.aclose()

    asyncio.run(close_twice())


def test_every_preset_says_where_its_key_comes_from() -> None:
    for name, preset in presets().items():
        assert bool(preset.key_env) == preset.needs_key, name
        assert preset.base_url.startswith("https://") == (preset.needs_key and name != "azure"), name


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_on_this_machine_is_never_asked_through_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    backend = CHAT_BACKENDS[0]
    with chat_server([backend.reply("Hi.")]) as server:
        provider = backend.provider(server.url.replace("127.0.0.1", host))
        assert asyncio.run(hear(provider)).text == "Hi."


def test_a_server_elsewhere_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CHAT_BACKENDS[0]
    with chat_server([backend.reply("Hi.")]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        monkeypatch.setenv("http_proxy", proxy.address)
        heard = asyncio.run(hear(backend.provider("http://models.example/v1")))
        assert [received.path for received in proxy.others] == ["http://models.example/v1/chat/completions"]
    assert heard.error is not None  # the loopback server is no proxy


def test_a_base_url_s_last_slash_does_not_count() -> None:
    assert HttpClient("http://127.0.0.1:1/v1/", {}).base_url == "http://127.0.0.1:1/v1"
