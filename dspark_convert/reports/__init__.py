"""One report in four forms: JSON, which is the document itself, JUnit XML, Markdown and HTML.

Reports are also read back, compared and held to thresholds here. Names, prompts and reasons come
from files that nobody vouches for, so every writer shows them as data.
"""
