"""Patches on a pinned source tree: their headers, their diffs, and what they find in a tree."""
