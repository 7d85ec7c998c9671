"""Task files of other tools, turned into jobs."""
