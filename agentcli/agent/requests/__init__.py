"""Sends the request of one round: reserves its price, rewrites a rejected request, and reads the reply's blocks.

The reply's calls are run in `agent/calls`.
"""
