"""The JSON objects by which programs follow and steer a session, over a pipe or over HTTP.

Their forms are described in docs/stream-json.md.
"""
