"""Files of vLLM."""
