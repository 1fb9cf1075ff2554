"""Keeps workers."""


class Pool:
    def __init__(self, settings):
        self.size = int(settings["workers"])
        self.name = settings["name"].upper()
