"""Client and server over a link: who drafts, with which drafter, and how (`moa-bench split`)."""
