"""Writes a session as a document: Markdown, JSON, or one HTML page.

`story` turns entries into turns with their replies and calls; `markdown` and `page` write these.
"""
