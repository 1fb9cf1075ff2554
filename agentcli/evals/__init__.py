"""Measures how well a model does tasks with this program.

`runs` has an engine of `attempt` try each `task`; `store` keeps the outcomes, `report` shows them.
"""
