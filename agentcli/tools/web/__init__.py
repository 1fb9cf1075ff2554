"""Fetches and searches the web for the web tools; `access` is the protocol they use.

Addresses are judged in `safety/addresses`; what touches the network stays here.
"""
