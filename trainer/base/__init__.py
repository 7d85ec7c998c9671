"""What every room may use: errors, environment, strict JSON, files, text, symbols, arguments, settings."""
