"""`moa-bench cut`: answers whose link is cut or reset, or whose server is killed, at random times."""
