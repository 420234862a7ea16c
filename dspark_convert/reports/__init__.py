"""One report in four forms: JSON is the document itself; JUnit XML, Markdown and HTML are here.

Names, prompts and reasons come from files that nobody vouches for: every writer shows them as data.
"""
