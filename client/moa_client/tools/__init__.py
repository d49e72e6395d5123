"""Tools that a model may call: what is offered, and the calls in the text that models write. Pure."""
