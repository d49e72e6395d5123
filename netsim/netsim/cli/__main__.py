"""`python -m netsim.cli`: the command line without an installed script."""

from netsim.cli import main

main(prog_name="netsim")
