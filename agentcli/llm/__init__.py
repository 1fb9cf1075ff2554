"""Models: messages, the interface of providers, requests over HTTP, wire formats, prices and token estimates."""
