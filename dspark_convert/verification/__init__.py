"""Does a draft still draft well: checks, verdicts and the report."""
