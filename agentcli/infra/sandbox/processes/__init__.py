"""Starts commands, reads their output, notices when they stall, and ends them with everything they started.

Confinement comes in as a callback. `keeper` is a program of its own, which must import little.
"""
