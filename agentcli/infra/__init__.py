"""The machine behind the agent's interfaces. Nothing here knows the model or decides what may run."""
