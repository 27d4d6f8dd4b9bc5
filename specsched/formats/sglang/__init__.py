"""Files of SGLang."""
