"""Why a draft is accepted badly: the ways in which it may be misread, tried and compared."""
