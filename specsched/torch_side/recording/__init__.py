"""Recording of traces."""
