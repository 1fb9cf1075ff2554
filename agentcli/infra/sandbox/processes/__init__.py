"""Starts commands, reads their output, notices when they stall, and ends them with everything they started."""
