"""Methods side by side: one interleaved run, one JSON file, a table, pictures, a page."""
