"""`python -m stringpe`: the command line for launchers, `accelerate launch -m stringpe train …`."""

from .cli.main import main

if __name__ == "__main__":
    main()
