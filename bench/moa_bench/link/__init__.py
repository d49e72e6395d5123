"""`moa-bench network` and `moa-bench cut`: the protocol over emulated links."""
