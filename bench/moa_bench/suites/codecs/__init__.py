"""What each memory codec costs (`moa-bench codecs`)."""
