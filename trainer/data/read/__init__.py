"""Candle files to bars: formats, columns, times, symbols, checks."""
