"""How the bundled models were made."""
