"""Everything that talks to the Hub, or is written for it."""
