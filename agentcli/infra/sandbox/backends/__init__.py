"""Confines commands: each backend implements `confinement.Confinement`, and `choosing` picks the first that works."""
