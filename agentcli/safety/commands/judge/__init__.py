"""Makes a verdict of a command: walks through it as the shell would run it and judges each simple command on the way.

`analysis.analyse` is the entry; it is imported for the first command, not at the start.
"""
