"""Keeps what files held before and after each change, outside of the project, in the form of a git directory."""

from __future__ import annotations
