"""Writes a session as a document: Markdown, JSON, or one HTML page."""
