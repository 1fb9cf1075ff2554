"""Finds secrets in text and masks them; `masking` is the entry.

A rule is a row, with an example, in tokens.toml (keys that say what they are), provider_keys.toml (keys that the name
of their provider gives away) or places.toml (headers, URLs, assignments). No secret stands in these tables.
"""
