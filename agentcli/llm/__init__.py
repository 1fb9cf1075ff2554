"""Models: messages, the provider interface, requests over HTTP, retries, prices, token estimates; one layer."""
