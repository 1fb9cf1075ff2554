"""Models: messages, the provider interface, requests over HTTP, retries, prices, token estimates.

It knows nothing else of agentcli.
"""
