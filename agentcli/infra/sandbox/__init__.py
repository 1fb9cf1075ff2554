"""Runs commands and file operations locally, inside the configured sandbox: `local` puts the rooms together.

A backend implements `confinement.Confinement` and stands in `backends`. Rooms import each other in one direction only,
which import-linter checks. Nothing here decides whether a call may run: `agent` does.
"""
