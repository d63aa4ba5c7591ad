"""`python -m planewise` is the `planewise` command."""

from planewise.cli import main

if __name__ == "__main__":  # processes that draw figures import this
    main()
