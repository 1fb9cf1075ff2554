"""Telemetry: a session's events as spans and metrics, and the program's log records, sent over OTLP.

Only `pipes`, `tracing` and `metrics` import OpenTelemetry; `following` loads them in a thread when there is something to tell.
"""
