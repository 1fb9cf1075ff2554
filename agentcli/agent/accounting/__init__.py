"""Adds up what replies and calls take, and holds the budgets; the account of a day is `infra/day_account`."""
