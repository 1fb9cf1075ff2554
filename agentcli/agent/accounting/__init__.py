"""Adds up what replies and calls take, and holds the budgets.

Prices come from `llm/models`; the account of a day, shared by all processes, is `infra/day_account`.
"""
