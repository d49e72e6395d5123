"""`moa-bench capacity`: more and more users on one server, all in one process on the other core."""
