"""What a run leaves behind: events.jsonl, packets.csv.gz and summary.json, and the report drawn from them."""
