"""`python -m rdmacoll`: the command line with this interpreter."""

from rdmacoll.cli.main import main

if __name__ == "__main__":
    main()
