"""`python -m mqq`: the program, with the same arguments."""

import os
import subprocess
import sys

from mqq import program


def main() -> None:
    path = os.fspath(program())
    arguments = [path, *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.run(arguments).returncode)
    os.execv(path, arguments)


if __name__ == "__main__":
    main()
