"""Finds secrets in text and masks them; `masking` is the entry.

A rule is a row, with an example, in one of the TOML files: tokens.toml (keys that say what they are),
provider_keys.toml (keys that the name of their provider gives away), places.toml (headers, URLs, assignments).
`private_keys` finds blocks of several lines. No file is read but these tables, and no secret stands in them.
"""
