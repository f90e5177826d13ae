"""Run the command line with ``python -m daband``."""

from daband.cli._main import main

if __name__ == "__main__":
    main()
