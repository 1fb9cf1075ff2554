"""The embedded model: `weights` fetches it, `server` gives a llama.cpp server that all agentcli processes share."""
