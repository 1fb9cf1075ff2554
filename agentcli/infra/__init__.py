"""Implements the agent's interfaces on this machine. Nothing here knows the model or decides what may run."""
