"""Run the command line from a checkout: `python cli.py simulate --trace chat --sla 120`."""

from specsched.cli.app import main

if __name__ == "__main__":
    main()
