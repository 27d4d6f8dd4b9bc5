"""`python -m specsched`, for where the script is not on the path."""

from .cli.app import main

if __name__ == "__main__":
    main()
