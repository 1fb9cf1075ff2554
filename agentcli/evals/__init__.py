"""Measures how well a model does tasks with this program.

`runs` has an engine (`attempt`, or `ray_engine`) attempt each `task`; `store` keeps the outcomes, `report` shows them.
"""
