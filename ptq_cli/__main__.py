"""``python -m ptq_cli``: the same as ``ptq``."""

from ptq_cli.cli.main import main

if __name__ == "__main__":
    main()
