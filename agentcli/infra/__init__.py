"""The machine behind the agent's interfaces: sandbox, session stores, data files, locks, grants.

Nothing here knows the model or decides what may run.
"""
