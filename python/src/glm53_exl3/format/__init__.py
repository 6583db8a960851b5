"""Layer 1: what EXL3 looks like on disk. Standard library only, no torch."""
