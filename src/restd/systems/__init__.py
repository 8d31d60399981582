"""Whole systems by name: an identifier scheme, a backbone and an objective, or a ranker; and budgets they share."""

from restd.systems.budget import Budget, budget_names, read_budget
from restd.systems.registry import SYSTEMS, Need, SystemSpec
from restd.systems.resolve import ResolvedSystem, resolve_system

__all__ = [
    "SYSTEMS",
    "Budget",
    "Need",
    "ResolvedSystem",
    "SystemSpec",
    "budget_names",
    "read_budget",
    "resolve_system",
]
