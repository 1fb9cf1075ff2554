"""The JSON lines of `--input-format stream-json` and `--output-format stream-json`.

Forms are described in docs/stream-json.md. What a line asks for is done by the session, not here.
"""
