"""A small engine that decodes speculatively, token by token."""
