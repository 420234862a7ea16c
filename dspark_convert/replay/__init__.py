"""Acceptance arithmetic on a recorded text: what a decode loop would do, in expectation."""
