"""A target's run, recorded as a trace; traces are written, read and imported here."""
