"""Finds secrets in text and masks them; `masking` is the module to begin with.

A rule is a row with an example in tokens.toml (keys with a form of their own), provider_keys.toml (keys that are known
by the name of their provider) or places.toml (headers, URLs, assignments). No secret is in these tables.
"""
