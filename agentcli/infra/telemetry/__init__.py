"""Spans and metrics over OTLP. All but `exporter` import OpenTelemetry, and are loaded in its thread."""
