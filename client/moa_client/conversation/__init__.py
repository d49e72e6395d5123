"""The conversation and its answers: pure state machines."""
