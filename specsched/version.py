"""The one place that names the version: pyproject.toml and every file we write take it from here."""

VERSION = "0.1.0"
