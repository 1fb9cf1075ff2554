"""Measures how well a model does tasks with this program.

`task` reads tasks, `attempt` lets a model try one and `checks` what came of it, `measures` counts what it took on the
way. `running` does a whole run through one of the `engines`, `store` keeps what came of each attempt, `comparing` holds
two runs against each other, `report` draws one.
"""
