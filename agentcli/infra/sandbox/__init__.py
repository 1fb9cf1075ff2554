"""Runs commands and file operations locally, inside the configured sandbox: `local` puts the rooms together.

`confinement` is the seam that every backend implements; rooms may import it and one another, but never `local`.
"""
