"""Train what a YAML says: python train.py, accelerate launch train.py or torchrun train.py, --config FILE.

The same as ``vaak train FILE``; see ``python train.py --help``.
"""

from vaak.cli.main import exit_on_error
from vaak.compat.unified_parser import parse_arguments


def main() -> None:
    """Parse the arguments and train; errors in the YAML end with exit code 2."""
    arguments = parse_arguments()

    from vaak.cli.train import run_training

    run_training(arguments.config, arguments.overrides, trust_code=arguments.trust_code)


if __name__ == "__main__":
    exit_on_error(main)
