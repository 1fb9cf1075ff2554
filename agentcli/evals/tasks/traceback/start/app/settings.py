"""Reads settings: KEY=VALUE lines."""

DEFAULTS = {"port": "8080", "workers": "2", "name": "app"}


def parse(text):
    """The settings of a text over the defaults; blank lines and lines that begin with # do not count."""
    settings = dict(DEFAULTS)
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition("=")
        settings[key.strip()] = value.strip() or None
    return settings
