"""Pydantic models of every document that is read or written."""
