"""Finds secrets in text and masks them; `masking` is the module to begin with.

A rule is a row in tokens.toml (keys with a recognizable format), provider_keys.toml (keys recognized by the name of
their provider) or places.toml (headers, URLs, assignments). The tables contain no real secret.
"""
