"""``python -m daband``: the command line."""

from daband.cli._main import main

if __name__ == "__main__":
    main()
