"""Modules for every room: errors, environment, strict JSON, files, text, symbols, arguments, settings."""
