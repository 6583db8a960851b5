"""The native backend: MoE kernels of this project, `python/csrc/native`."""
