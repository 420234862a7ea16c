"""The published shapes of a draft: how each is recognised, parsed and rendered."""
