"""A file for patches to change."""

GREETING = "hello"
NUMBER = 1
