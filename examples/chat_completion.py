"""Answers in the form of OpenAI's Chat Completions, as a proxy in front of an agent would."""

import json

from scripted import scripted

from agentcli import query_sync, to_chat_completion

done = query_sync("What is 2 + 2?", model=scripted({"text": "Four."}))
print(json.dumps(to_chat_completion(done, model="my-agent")["choices"], indent=2))
