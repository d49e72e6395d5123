"""Traces: what a link did second by second. Our CSV, and three other formats to and from it."""
