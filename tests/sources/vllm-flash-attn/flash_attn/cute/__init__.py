# The name of this package is rewritten when it is copied.
PACKAGE = "flash_attn.cute"
