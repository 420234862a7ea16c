"""The published formats of a draft: how each is recognised, parsed and rendered."""
