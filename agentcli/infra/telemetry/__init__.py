"""Telemetry: what happens in sessions as spans and metrics, and the program's log records, sent over OTLP.

`following` is what sessions meet; the other modules import OpenTelemetry, and are loaded in its thread.
"""
