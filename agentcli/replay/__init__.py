"""Runs the calls of a recorded session again, and says what comes otherwise.

`recording` reads the turns of a log, `scratch` makes the workspace as it was, `playing` plays the recorded model,
`comparing` runs the session and collects the differences. `as_test` writes a session as a test.
"""
