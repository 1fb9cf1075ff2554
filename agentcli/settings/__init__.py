"""The settings: their structs, reading and writing them, keys, trust in projects, folders and small files."""
