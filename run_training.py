"""Train as conf/ and the command line say: python run_training.py --help"""

import sys
from pathlib import Path

from mint.commands.training.train import main

if __name__ == "__main__":
    conf = Path(__file__).resolve().parent / "conf"
    sys.exit(main(sys.argv[1:], "python run_training.py", conf))
