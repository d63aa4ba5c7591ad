"""`python -m planewise` is the `planewise` command."""

from planewise.cli import main

main()
