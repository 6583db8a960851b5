// Empty: nothing is compiled against it.
