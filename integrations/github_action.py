"""The step of action.yml that runs agentcli: `INPUT_…` in, a job summary and the step's outputs out.

It prints calls as they are made. Whatever a model or a file of the repository says is data here: it reaches GitHub only
in files with random delimiters, and on stdout only while workflow commands are off.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_SUMMARY_CHARS = 500_000  # GitHub takes 1 MiB for a step
MAX_CALL_CHARS = 160
FLAGS = {  # of inputs that have one value
    "MODEL": "--model",
    "PERMISSION_MODE": "--permission-mode",
    "MAX_TURNS": "--max-turns",
    "MAX_BUDGET_USD": "--max-budget-usd",
    "TOOLS": "--tools",
    "JSON_SCHEMA": "--json-schema",
    "SETTINGS": "--settings",
}


def command(environment: Mapping[str, str]) -> list[str]:
    """Return the command for the inputs. Rules are one a line; the prompt goes to stdin."""
    arguments = [environment.get("AGENTCLI", "agentcli"), "-p", "--output-format", "stream-json"]
    for name, flag in FLAGS.items():
        if value := environment.get(f"INPUT_{name}", "").strip():
            arguments.append(f"{flag}={value}")
    for name, flag in (("ALLOW", "--allow"), ("DENY", "--deny")):
        rules = environment.get(f"INPUT_{name}", "").splitlines()
        arguments += [f"{flag}={rule.strip()}" for rule in rules if rule.strip()]
    return arguments


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's environment: the key under its provider's name, and no way to write outputs or the summary."""
    passed = {
        name: value for name, value in environment.items() if not name.startswith(("INPUT_", "GITHUB_", "ACTIONS_"))
    }
    name, key = environment.get("INPUT_API_KEY_ENV", "").strip(), environment.get("INPUT_API_KEY", "")
    if key:
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            sys.exit(f"api-key-env: {name!r} is not the name of a variable, such as ANTHROPIC_API_KEY.")
        passed[name] = key
    return passed


def parts(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a message of the model's, or of results of its calls."""
    content = event.get("message", {}).get("content") if event["type"] in ("assistant", "user") else None
    return content if isinstance(content, list) else []


def call_line(part: Mapping[str, Any], failed: bool) -> str:
    """Return a call as one line of a Markdown list."""
    shown = json.dumps(part["input"], ensure_ascii=False)
    shown = shown if len(shown) <= MAX_CALL_CHARS else f"{shown[:MAX_CALL_CHARS]}…"
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    return f"- {'✗' if failed else '✓'} {part['name']} {fence} {shown} {fence}"


def summary(calls: list[str], result: Mapping[str, Any]) -> str:
    cost = result.get("total_cost_usd")
    facts = [
        f"{result.get('num_turns', 0)} requests",
        "cost unknown" if cost is None else f"${cost:.4f}",
        f"{len(calls)} calls",
        f"{len(result.get('permission_denials') or ())} denied",
        "" if result.get("subtype") == "success" else f"**{result.get('subtype')}**",
    ]
    details = f"\n<details><summary>Calls</summary>\n\n{chr(10).join(calls)}\n\n</details>\n" if calls else ""
    text = f"### agentcli\n\n{result.get('result') or ''}\n\n{' · '.join(filter(None, facts))}\n{details}"
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{text[:MAX_SUMMARY_CHARS]}\n\n(cut)\n"


def append(variable: str, text: str) -> None:
    """Append to the file that GitHub names in a variable; without one, outside of GitHub, there is nothing to do."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def set_output(name: str, value: str) -> None:
    delimiter = f"end_{secrets.token_hex(16)}"  # the value is a model's, and must not end itself
    append("GITHUB_OUTPUT", f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def main() -> int:
    prompt = os.environ.get("INPUT_PROMPT", "")
    if not prompt.strip():
        sys.exit("prompt: the input is empty.")
    open_calls: dict[str, Mapping[str, Any]] = {}
    calls: list[str] = []
    result: dict[str, Any] = {}
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    environment = agent_environment(os.environ)
    try:
        with subprocess.Popen(
            command(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, encoding="utf-8"
        ) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(prompt)
            agent.stdin.close()
            for event in map(json.loads, agent.stdout):
                result = event if event["type"] == "result" else result
                for part in parts(event):
                    if part["type"] == "tool_use":
                        open_calls[part["id"]] = part
                    elif part["type"] == "tool_result" and part["tool_use_id"] in open_calls:
                        calls.append(call_line(open_calls.pop(part["tool_use_id"]), bool(part.get("is_error"))))
                        print(calls[-1], flush=True)
                    elif part["type"] == "text" and event["type"] == "assistant":
                        print(part["text"], flush=True)
    finally:
        print(f"\n::{token}::", flush=True)
    structured = result.get("structured_output")
    set_output("result", str(result.get("result") or ""))
    set_output("structured-output", "" if structured is None else json.dumps(structured))
    set_output("session-id", str(result.get("session_id") or ""))
    set_output("cost-usd", "" if result.get("total_cost_usd") is None else str(result["total_cost_usd"]))
    set_output("exit-code", str(agent.returncode))
    append("GITHUB_STEP_SUMMARY", summary(calls, result))
    return agent.returncode


if __name__ == "__main__":
    sys.exit(main())
