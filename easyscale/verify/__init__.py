"""Rank side of `easyscale verify`: runs the script, makes it repeatable, and records its first steps."""
