"""Traces of answers, from the user's question to the last verdict; nothing is traced unless a program asks for it."""
