"""The two command-line programs: parsing, rendering, exit codes."""
