"""The command line. Starts without torch: whatever needs it is imported by the command that does."""
