"""Confines commands. Each backend implements `confinement.Confinement`; `choosing` picks the first that works."""
