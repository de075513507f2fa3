#!/bin/sh
# Train on what `accelerate config` describes; all arguments go to train.py, and none at all means the quick start.
# Example: sh scripts/train.sh --config configs/quickstart.yml training.epochs=3
set -eu
root=$(dirname "$0")/..
[ $# -gt 0 ] || set -- --config "$root/configs/quickstart.yml"
exec accelerate launch "$root/train.py" "$@"
