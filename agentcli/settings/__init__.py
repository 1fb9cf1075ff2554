"""Settings: their structs, reading and writing them, keys, trust in projects, and where files are."""
