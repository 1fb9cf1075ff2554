"""Claude through Anthropic's SDK and through the clouds, met by the program as people run it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran
from tests.conformance.cloud_backends import (
    ACCESS_KEY,
    AWS_ENVIRONMENT,
    NO_MESSAGES,
    REGION,
    SECRET_KEY,
    BedrockBackend,
    FoundryBackend,
    VertexBackend,
)
from tests.conformance.replies import (
    Call,
    Said,
    anthropic_reply,
    call_delta,
    chat_chunk,
    chat_reply,
    chat_sse,
    responses_reply,
)
from tests.conformance.servers import (
    LoopbackServer,
    Received,
    Reply,
    anthropic_server,
    chat_server,
    json_reply,
    responses_server,
    running,
)

pytestmark = pytest.mark.slow  # each case is a run of the whole program, and the SDK takes seconds to import

BEDROCK, VERTEX, FOUNDRY = BedrockBackend(), VertexBackend(), FoundryBackend("foundry")
LOOK = Call("toolu_1", "file_read", {"path": "a.txt"})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.folder / "a.txt").write_text("seventeen\n")
    return made


def ask(place: Place, model: str, env: dict[str, str], *arguments: str) -> Ran:
    return place.run("-m", model, "-p", "go", "--output-format", "json", *arguments, env=env)


def answer_of(ran: Ran) -> str:
    assert ran.code == 0, ran
    return str(ran.result["result"])


def failure_of(ran: Ran, code: int = 1) -> str:
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    return str(ran.result["result"]) if code == 1 else ran.err


def aws(server: LoopbackServer, **more: str) -> dict[str, str]:
    return AWS_ENVIRONMENT | {"AWS_REGION": REGION, "ANTHROPIC_BEDROCK_BASE_URL": server.url} | more


# The SDK as carrier


def test_the_sdk_carries_a_whole_turn(place: Place) -> None:
    with anthropic_server([anthropic_reply(Said(calls=(LOOK,))), anthropic_reply("It says seventeen.")]) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-1", "AGENTCLI_PROVIDER_TRANSPORT": "sdk"}
        ran = ask(place, "anthropic/claude-sonnet-5-5", env)
        assert answer_of(ran) == "It says seventeen."
        assert [r.headers["user-agent"].split("/")[0] for r in server.requests] == ["AsyncAnthropic"] * 2
        assert "seventeen" in str(server.requests[1].json)
        assert server.connections == 1
        assert place.run("models", "check", "anthropic/claude-sonnet-5-5", env=env).code == 0


def test_both_carriers_send_the_same_request(place: Place) -> None:
    bodies = []
    for transport in ("http", "sdk"):
        with anthropic_server([anthropic_reply("Hi.")]) as server:
            env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-1"}
            ask(place, "anthropic/claude-sonnet-5-5", env | {"AGENTCLI_PROVIDER_TRANSPORT": transport})
            bodies.append(server.requests[0].json)
    assert bodies[0] == bodies[1]


def test_the_sdk_is_not_led_elsewhere(place: Place) -> None:
    with anthropic_server() as elsewhere:
        moved = Reply(b"", 307, headers={"location": f"{elsewhere.url}/v1/messages"})
        with anthropic_server([moved]) as server:
            env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-1", "AGENTCLI_PROVIDER_TRANSPORT": "sdk"}
            told = failure_of(ask(place, "anthropic/claude-sonnet-5-5", env))
        assert f"redirects to {elsewhere.url}/v1/messages" in told
        assert elsewhere.requests == []


# Bedrock


def test_bedrock_answers_with_the_credentials_of_the_environment(place: Place) -> None:
    script = [BEDROCK.reply(Said("Let me look.", "Hm.", (LOOK,))), BEDROCK.reply("It says seventeen.")]
    with BEDROCK.serving(script, None) as server:
        ran = ask(place, f"bedrock/{BEDROCK.model}", aws(server))
        assert answer_of(ran) == "It says seventeen."
        assert "seventeen" in str(server.requests[1].json)
        assert place.run("models", "check", f"bedrock/{BEDROCK.model}", env=aws(server)).code == 0
    # 2 x (200 uncached, 1,000 cached, 42 said), and 10 % for an endpoint that stays in its region
    assert ran.result["total_cost_usd"] == pytest.approx(2 * (200 * 2 + 1_000 * 0.1 + 42 * 10) / 1e6 * 1.1)


@pytest.mark.full
def test_bedrock_answers_with_a_profile(place: Place, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    keys = f"aws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n"
    token = f"aws_session_token={AWS_ENVIRONMENT['AWS_SESSION_TOKEN']}\n"
    (tmp_path / ".aws/credentials").write_text(f"[work]\n{keys}{token}")
    (tmp_path / ".aws/config").write_text(f"[profile work]\nregion={REGION}\n")
    with BEDROCK.serving([BEDROCK.reply("Hi.")], None) as server:
        env = {"AWS_PROFILE": "work", "ANTHROPIC_BEDROCK_BASE_URL": server.url}
        assert answer_of(ask(place, f"bedrock/{BEDROCK.model}", env)) == "Hi."


def test_bedrock_answers_with_a_key_that_was_kept(place: Place) -> None:
    def health(received: Received) -> Reply:
        if received.headers["authorization"] == "Bearer bedrock-key":
            return BEDROCK.refusal(400, "", NO_MESSAGES)
        return BEDROCK.refusal(403, "", "Invalid API Key format: Must start with pre-defined prefix")

    usual = "global.anthropic.claude-sonnet-5-5"
    with BEDROCK.serving([BEDROCK.reply("Hi.")], None) as server:
        server._routes[f"POST /model/{usual}/invoke"] = health
        env = {"AWS_REGION": REGION, "ANTHROPIC_BEDROCK_BASE_URL": server.url}
        refused = place.run("login", "bedrock", stdin="wrong-key\n", env=env)
        assert (refused.code, "Must start with" in refused.err) == (1, True)
        assert place.run("login", "bedrock", stdin="bedrock-key\n", env=env).code == 0
        assert answer_of(ask(place, f"bedrock/{BEDROCK.model}", env)) == "Hi."
        assert server.requests[0].headers["authorization"] == "Bearer bedrock-key"


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("AWS_REGION", "AWS_REGION"),
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    ],
)
def test_bedrock_says_what_is_missing(place: Place, missing: str, named: str) -> None:
    with BEDROCK.serving([], None) as server:
        env = {name: value for name, value in aws(server).items() if name != missing}
        told = failure_of(ask(place, f"bedrock/{BEDROCK.model}", env))
        assert told.startswith("Could not sign in to bedrock: ")
        assert named in told
        assert server.requests == []


def test_a_refusal_of_bedrock_shows_no_secret(place: Place) -> None:
    def quoting(received: Received) -> Reply:
        return BEDROCK.refusal(403, "", f"The security token {received.headers['x-amz-security-token']} is expired")

    with BEDROCK.serving([quoting], None) as server:
        told = failure_of(ask(place, f"bedrock/{BEDROCK.model}", aws(server)))
    assert "The security token [masked] is expired" in told


def test_no_log_holds_what_the_vendors_libraries_know(place: Place) -> None:
    with BEDROCK.serving([BEDROCK.reply("Hi.")], None) as server:
        assert answer_of(ask(place, f"bedrock/{BEDROCK.model}", aws(server), "--verbose")) == "Hi."
        signature = server.requests[0].headers["authorization"].rpartition("=")[2]
    written = (place.home / "state/logs/agentcli.log").read_text()
    assert not [secret for secret in (SECRET_KEY, AWS_ENVIRONMENT["AWS_SESSION_TOKEN"], signature) if secret in written]


@pytest.mark.parametrize("provider", ["bedrock", "vertex", "foundry"])
def test_a_cloud_without_its_libraries_says_how_to_get_them(place: Place, tmp_path: Path, provider: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules.update({name: None for name in ('boto3', 'google.auth', 'azure.identity')})\n"
    )
    env = {"PYTHONPATH": str(tmp_path), "CLOUD_ML_REGION": "global", "ANTHROPIC_FOUNDRY_RESOURCE": "r"}
    told = failure_of(ask(place, f"{provider}/claude-sonnet-5-5", env), code=2)
    assert ("agentcli[cloud]" in told) if provider != "foundry" else ("ANTHROPIC_FOUNDRY_API_KEY" in told)


# Vertex


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's file; its tokens come from an address that a test sets."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the key")
    made = subprocess.run(["openssl", "genrsa", "2048"], check=True, capture_output=True, text=True)
    file = tmp_path / "account.json"
    about = {"type": "service_account", "project_id": "a-project", "private_key_id": "1", "client_email": "me@test"}
    file.write_text(json.dumps(about | {"private_key": made.stdout, "token_uri": ""}))
    return file


def google(server: LoopbackServer, tokens: LoopbackServer, account: Path) -> dict[str, str]:
    account.write_text(json.dumps(json.loads(account.read_text()) | {"token_uri": f"{tokens.address}/token"}))
    return {
        "GOOGLE_APPLICATION_CREDENTIALS": str(account),
        "CLOUD_ML_REGION": "us-east5",
        "ANTHROPIC_VERTEX_BASE_URL": server.url,
    }


def token_server(answer: Reply) -> Any:
    return running(LoopbackServer([answer] * 4, chat_path="/token", routes={}))


@pytest.mark.full
def test_vertex_answers_with_a_token_of_the_default_credentials(place: Place, account: Path) -> None:
    script = [VERTEX.reply(Said(calls=(LOOK,))), VERTEX.reply("It says seventeen.")]
    token = json_reply({"access_token": "ya29.token", "expires_in": 3_600, "token_type": "Bearer"})
    with VERTEX.serving(script, None) as server, token_server(token) as tokens:
        ran = ask(place, f"vertex/{VERTEX.model}", google(server, tokens, account))
        assert answer_of(ran) == "It says seventeen."
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer ya29.token"] * 2
        assert len(tokens.requests) == 1


@pytest.mark.full
def test_vertex_tells_why_there_is_no_token(place: Place, account: Path) -> None:
    refused = json_reply({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)
    with VERTEX.serving([], None) as server, token_server(refused) as tokens:
        told = failure_of(ask(place, f"vertex/{VERTEX.model}", google(server, tokens, account)))
    assert "Invalid JWT Signature" in told
    assert "gcloud auth application-default login" in told


def test_vertex_answers_with_a_token_of_a_command(place: Place) -> None:
    (place.home / "config.toml").parent.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text('[providers.vertex]\napi_key_helper = "echo ya29.mine"\n')
    with VERTEX.serving([VERTEX.reply("Hi.")], None) as server:
        env = {"CLOUD_ML_REGION": "us-east5", "ANTHROPIC_VERTEX_BASE_URL": server.url}
        assert "ANTHROPIC_VERTEX_PROJECT_ID" in failure_of(ask(place, f"vertex/{VERTEX.model}", env), code=2)
        env["ANTHROPIC_VERTEX_PROJECT_ID"] = "a-project"
        assert answer_of(ask(place, f"vertex/{VERTEX.model}", env)) == "Hi."
        assert server.requests[0].headers["authorization"] == "Bearer ya29.mine"


def test_vertex_needs_a_region(place: Place) -> None:
    assert "set CLOUD_ML_REGION" in failure_of(ask(place, "vertex/claude-sonnet-5-5", {}), code=2)


# Foundry


@pytest.mark.parametrize(
    ("variable", "header", "sent"),
    [
        ("ANTHROPIC_FOUNDRY_API_KEY", "x-api-key", "secret-key"),
        ("ANTHROPIC_FOUNDRY_AUTH_TOKEN", "authorization", "Bearer secret-key"),
    ],
)
def test_foundry_answers_with_a_key_or_a_token(place: Place, variable: str, header: str, sent: str) -> None:
    backend = FoundryBackend("foundry" if header == "x-api-key" else "foundry-bearer")
    with backend.serving([backend.reply("Hi.")], None) as server:
        env = {variable: "secret-key", "ANTHROPIC_FOUNDRY_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-other"}
        assert answer_of(ask(place, f"foundry/{FOUNDRY.model}", env)) == "Hi."
        assert server.requests[0].headers[header] == sent
        assert "sk-other" not in str(server.requests[0].headers)


@pytest.mark.full
def test_foundry_answers_with_azure_s_own_sign_in(place: Place, tmp_path: Path) -> None:
    expires = int(time.time()) + 3_600
    az = tmp_path / "bin/az"
    az.parent.mkdir()
    az.write_text(f'#!/bin/sh\necho \'{{"accessToken": "eyJ.az.token", "expires_on": {expires}}}\'\n')
    az.chmod(0o755)
    backend = FoundryBackend("foundry-bearer")
    with backend.serving([backend.reply("Hi.")], None) as server:
        env = {
            "ANTHROPIC_FOUNDRY_BASE_URL": server.url,
            "AZURE_TOKEN_CREDENTIALS": "AzureCliCredential",
            "PATH": f"{az.parent}:{place.environment['PATH']}",
        }
        assert answer_of(ask(place, f"foundry/{FOUNDRY.model}", env)) == "Hi."
        assert server.requests[0].headers["authorization"] == "Bearer eyJ.az.token"
        az.write_text("#!/bin/sh\necho 'Please run az login' >&2\nexit 1\n")
        told = failure_of(ask(place, f"foundry/{FOUNDRY.model}", env))
    assert told.startswith("Could not sign in to foundry: ")
    assert "az login" in told


def test_foundry_needs_the_name_of_a_resource(place: Place) -> None:
    told = failure_of(ask(place, "foundry/claude-sonnet-5-5", {"ANTHROPIC_FOUNDRY_API_KEY": "k"}), code=2)
    assert "set ANTHROPIC_FOUNDRY_RESOURCE" in told


# Azure OpenAI, Gemini, and the Responses API


def test_azure_is_asked_with_a_key_of_its_own_header(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server:
        server._chat_path = "/openai/v1/chat/completions"
        env = {"AZURE_OPENAI_ENDPOINT": server.address, "AZURE_OPENAI_API_KEY": "azure-key"}
        assert answer_of(ask(place, "azure/my-deployment", env)) == "Hi."
        assert server.requests[0].headers["api-key"] == "azure-key"
        assert "authorization" not in server.requests[0].headers
        assert server.requests[0].json["model"] == "my-deployment"


def test_azure_s_dated_api_has_an_address_for_each_deployment(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server:
        server._chat_path = "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21"
        env = {"AZURE_OPENAI_ENDPOINT": f"{server.address}/", "AZURE_OPENAI_API_KEY": "azure-key"}
        env["OPENAI_API_VERSION"] = "2024-10-21"
        assert answer_of(ask(place, "azure/my-deployment", env)) == "Hi."
        assert place.run("models", "check", "azure/my-deployment", env=env).code == 0


def test_azure_takes_a_token_where_the_settings_say_so(place: Place) -> None:
    (place.home).mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(
        '[providers.azure]\napi_key_helper = "echo entra-token"\nkey_header = "Authorization"\n'
    )
    with chat_server([chat_reply("Hi.")]) as server:
        server._chat_path = "/openai/v1/chat/completions"
        assert answer_of(ask(place, "azure/d", {"AZURE_OPENAI_ENDPOINT": server.address})) == "Hi."
        assert server.requests[0].headers["authorization"] == "Bearer entra-token"


def test_azure_needs_an_address(place: Place) -> None:
    told = failure_of(ask(place, "azure/d", {"AZURE_OPENAI_API_KEY": "k"}), code=2)
    assert "set AZURE_OPENAI_ENDPOINT" in told


def test_gemini_gets_the_signatures_of_its_calls_back(place: Place) -> None:
    """They come back where they were; a call of another model has a stand-in, else the request is refused."""
    sign = {"google": {"thought_signature": "CsMB"}}
    first = call_delta(0, "c1", "file_read", '{"path": "a.txt"}') | {"extra_content": sign}
    second = call_delta(1, "c2", "file_read", '{"path": "a.txt", "limit": 1}')
    calls = Reply(chat_sse([chat_chunk({"tool_calls": [first, second]}), chat_chunk({}, "tool_calls")]))
    with chat_server([calls, chat_reply("Seventeen."), chat_reply("Yes.")]) as server:
        (place.home).mkdir(exist_ok=True)
        (place.home / "config.toml").write_text(f'[providers.gemini]\nbase_url = "{server.url}"\n')
        env = {"GEMINI_API_KEY": "k"}
        ran = ask(place, "gemini/gemini-3.8-flash", env)
        assert answer_of(ran) == "Seventeen."
        sent = next(m for m in server.requests[1].json["messages"] if m["role"] == "assistant")["tool_calls"]
        assert [call.get("extra_content") for call in sent] == [sign, None]
        script = place.script({"tool_calls": [{"name": "file_read", "input": {"path": "a.txt"}}]}, {"text": "Read."})
        other = ask(place, script, {})
        ask(place, "gemini/gemini-3.8-flash", env, "--resume", other.result["session_id"])
        sent = next(m for m in server.requests[2].json["messages"] if m["role"] == "assistant")["tool_calls"]
        stand_in = {"google": {"thought_signature": "skip_thought_signature_validator"}}
        assert [call.get("extra_content") for call in sent] == [stand_in]


def test_a_model_of_the_responses_api_is_asked_there(place: Place) -> None:
    script = [responses_reply(Said("Let me look.", "Hm.", (LOOK,))), responses_reply("It says seventeen.")]
    with responses_server(script) as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1"}
        ran = ask(place, "openai/gpt-5.3-codex", env)
        assert answer_of(ran) == "It says seventeen."
        items = server.requests[1].json["input"]
        assert [item["type"] for item in items][-4:] == [
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
        ]
        assert "seventeen" in items[-1]["output"]
    assert ran.result["usage"]["cache_read_input_tokens"] == 2_000


def test_a_server_s_quirks_choose_the_api(place: Place) -> None:
    with responses_server([responses_reply("Hi.")]) as server:
        (place.home).mkdir(exist_ok=True)
        (place.home / "config.toml").write_text(
            f'[providers.work]\nbase_url = "{server.url}"\n[providers.work.quirks]\napi = "responses"\n'
        )
        assert answer_of(ask(place, "work/some-model", {})) == "Hi."
