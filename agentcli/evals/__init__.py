"""Measures how well a model does tasks with this program.

`run` has `attempt` do each `task`, here or through `ray_engine`; `checks` judges, `store` keeps, `report` shows.
"""
