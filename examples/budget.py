"""Ends a prompt that costs too much; `turn_usd`, `session_usd` and `day_usd` limit dollars in the same way."""

from scripted import scripted

from agentcli import Agent, AgentOptions, Settings
from agentcli.settings.structs import BudgetSettings

MODEL = scripted(
    {"tool_calls": [{"name": "file_list", "input": {}}], "usage": {"output_tokens": 5000}}, {"text": "Hi."}
)
LIMITS = Settings(budgets=BudgetSettings(turn_tokens=5000))

done = Agent(MODEL, options=AgentOptions(settings=LIMITS)).run_sync("Read everything.")
print("Stopped by", done.reason)
