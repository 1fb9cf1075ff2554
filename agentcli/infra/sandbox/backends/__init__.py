"""Confines commands: each backend implements `confinement.Confinement`, and `choosing` picks the first that works.

A backend prepares a launch; `processes` starts it. It may use `mounts`, `network` and `protection`.
"""
