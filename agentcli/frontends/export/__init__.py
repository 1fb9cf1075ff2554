"""Writes a session as a document: Markdown, JSON, or one HTML page.

`story` makes turns of the entries; `markdown` and `page` write these, `timeline` draws them.
"""
