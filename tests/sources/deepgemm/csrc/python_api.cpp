// Empty: nothing is compiled.
