"""Serves sessions over HTTP: to programs, and to people by a web page (docs/serve.md)."""
