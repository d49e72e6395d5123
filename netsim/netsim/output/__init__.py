"""What a run leaves: events.jsonl, packets.csv.gz and summary.json, and the report drawn from them."""
