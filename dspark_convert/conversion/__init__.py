"""Plan a conversion on headers, then carry it out by moving bytes."""
