"""`moa-bench engine` and `moa-bench quality`: the target's forward beside other engines, and how good its texts are."""
