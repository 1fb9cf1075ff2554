"""Bodies of the tools that need the session itself; each is loaded at its first call."""
