"""Builds nothing: the tree is read, not compiled."""

# Not on an index, so the wheel does not ask for it.
LEFT_OUT = ["flashinfer-cubin"]
