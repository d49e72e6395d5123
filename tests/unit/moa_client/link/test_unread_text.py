"""What each server would have to read of a conversation."""

from __future__ import annotations
