"""The JSON objects by which programs follow and steer a session, over a pipe or HTTP (docs/stream-json.md)."""
