"""Make an EXL3 pack of a small checkpoint, on a CPU and without calibration."""
