"""`python -m shardwise`: the command line."""

from shardwise.cli import main

main()
