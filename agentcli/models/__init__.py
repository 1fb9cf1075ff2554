"""Models by name: which one answers, and how its provider is made from the settings."""
