"""One run of a link: loop, conductor, control socket, the command that uses it."""
