"""Starts the server."""

from app.pool import Pool
from app.settings import parse


def start(text):
    """The address and the number of workers of a server with these settings."""
    settings = parse(text)
    pool = Pool(settings)
    return f"localhost:{settings['port']}", pool.size
