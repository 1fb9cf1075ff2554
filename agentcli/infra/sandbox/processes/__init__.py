"""Starts commands, reads their output, detects when they stall, and ends them with all their processes."""
