"""Bars: calendars, features, splits; `read` turns files into bars."""
