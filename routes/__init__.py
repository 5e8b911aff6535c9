"""The doors for browsers: parse, call one verb, render."""
