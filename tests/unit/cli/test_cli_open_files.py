"""A server may open as many files as the system lets it."""

import subprocess
import sys


def test_the_soft_limit_of_open_files_becomes_the_hard_one():
    code = (
        "import resource\n"
        "from services.cli.up import open_files_allowed\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "assert open_files_allowed() == hard > 64\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
