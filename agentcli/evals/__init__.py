"""Measures how well a model does tasks with agentcli.

`runs` lets an engine of `attempt` try each `task`; `store` stores the outcomes, `report` shows them.
"""
