"""``python -m vaak`` is the command ``vaak``."""

from vaak.cli.main import main

if __name__ == "__main__":
    main()
