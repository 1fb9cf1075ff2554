"""Questions to the person: approvals with their choices, lists to choose from, answers typed into the input.

Answers go out through functions that app.py passes in. The rules for what asks at all are in agent/.
"""
