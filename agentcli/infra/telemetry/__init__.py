"""Telemetry: what happens in sessions as spans and metrics, sent over OTLP.

`exporter` is what sessions meet; the other modules import OpenTelemetry, and are loaded in its thread.
"""
