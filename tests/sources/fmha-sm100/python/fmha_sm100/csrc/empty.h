// Empty: compiled at run time on other GPUs.
