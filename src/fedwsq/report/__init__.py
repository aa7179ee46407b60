"""From round records to things people look at."""
