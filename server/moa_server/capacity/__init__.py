"""What a model and a budget of memory hold: planned from sizes alone, without loading weights."""
