"""A target's run, recorded: prompts in, a trace out; read, written here, or imported."""
