"""Secrets in text: which formats keys and tokens have, where they stand in a text, and the text with them masked.

`masking` is what others call. The tables of formats: `platforms` and `services` (tokens that say what they are),
`named` (keys that the name of their provider gives away), `contexts` (headers, URLs, assignments); `private_keys` knows
blocks of several lines. A rule is a row, with an example, in one of them.
"""
