"""Runs commands and file operations locally, inside the configured sandbox; `local` puts the parts together."""
