"""Measuring a real link: a far end that echoes, sinks and sends, a near end that makes a profile or trace of it."""
