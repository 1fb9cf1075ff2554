"""Sends one round's request: reserves its price, repairs what a provider refuses, reads the reply's blocks.

Calls are run in `agent/calls`.
"""
