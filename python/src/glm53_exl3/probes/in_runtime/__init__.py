"""What runs inside the interpreter that is probed, as a script: standard library, and what that interpreter has."""
