"""Reads repositories as git does, without running git, to find what git would execute or obey."""
