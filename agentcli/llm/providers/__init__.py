"""One module for each kind of API, with the members of `Provider`; presets are rows in presets.toml.

Providers do not know each other. Their formats are pure functions in `llm/wire`.
"""
