"""Stands in for the package of that name."""
