"""One run of a link: loop, conductor, control socket."""
