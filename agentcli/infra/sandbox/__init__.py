"""Runs commands and file operations locally, inside the configured sandbox; `local` combines the parts."""
