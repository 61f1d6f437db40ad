"""The forms that EasyScale has: those that other tests have made are known by name as well."""

from easyscale import compression

__all__ = ["own_forms"]


def own_forms():
    """Return the classes by name."""
    return {name: cls for name, cls in compression.available().items() if cls.__module__.startswith("easyscale.")}
