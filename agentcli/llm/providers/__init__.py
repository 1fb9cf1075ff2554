"""One module for each kind of API, with the members of `Provider`. Providers do not know each other."""
