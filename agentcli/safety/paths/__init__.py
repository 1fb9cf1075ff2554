"""Judges paths by their text: secret files, files that programs run or obey, disguises, and paths outside the roots.

Nothing here looks at a disk. Callers resolve links and have the real path judged as well.
"""
