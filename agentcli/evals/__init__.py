"""Measures how well a model does tasks with this program.

`task` reads tasks, `attempt` lets a model attempt one, `checks` judges the attempt. `run` does a whole run, here or
through `ray_engine`, `store` keeps each outcome, `comparison` compares two runs, `report` shows one.
"""
