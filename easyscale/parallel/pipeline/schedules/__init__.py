"""The orders in which stages work: a file for each, found by its name."""

from easyscale.parallel.pipeline.schedules.schedule import Action, Kind, Schedule, available, get, register

__all__ = ["Action", "Kind", "Schedule", "available", "get", "register"]
