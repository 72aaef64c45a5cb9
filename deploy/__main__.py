"""`python -m deploy`: the `cacherl` command."""

from deploy.cli import main

main()
