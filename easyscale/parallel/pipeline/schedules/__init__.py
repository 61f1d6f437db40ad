"""The schedules of a pipeline: one file each, found by name."""

from easyscale.parallel.pipeline.schedules.schedule import Action, Kind, Schedule, available, get, register

__all__ = ["Action", "Kind", "Schedule", "available", "get", "register"]
