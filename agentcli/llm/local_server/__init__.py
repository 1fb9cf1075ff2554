"""The embedded model: its weights, and a llama.cpp server that all agentcli processes share.

`weights.install` fetches the pinned model, `server.acquire` gives a running server for it or any other GGUF
file. Nothing is imported here, so that naming a submodule costs only that submodule.
"""
