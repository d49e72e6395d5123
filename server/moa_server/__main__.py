"""`python -m moa_server`: what torchrun starts, which takes a module."""

from moa_server.cli import main

main()
