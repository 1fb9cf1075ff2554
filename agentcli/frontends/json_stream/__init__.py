"""The JSON lines of `--input-format stream-json` and `--output-format stream-json`.

What a line asks for is done by the session, not here.
"""
