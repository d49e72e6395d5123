"""Durations in words. Pure."""


def duration(seconds: float) -> str:
    """Seconds below 90, then minutes, then hours and minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
