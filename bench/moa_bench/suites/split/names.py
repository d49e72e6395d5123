"""What results call the ways to answer."""

PLAIN = "plain streaming"
CO_LOCATED = "co-located: the server drafts"
ALL = "moa: everything on"
SYNCHRONOUS, AHEAD, STREAMED = "synchronous rounds", "one round ahead", "streamed"
ORACLES = "split-sized"  # the result in which oracles draft
