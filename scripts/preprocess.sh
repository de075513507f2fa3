#!/bin/sh
# Prepare data without training; all arguments go to `vaak data preprocess`, and none at all means the quick start.
# Example: sh scripts/preprocess.sh --input_dir dataset/raw --output_dir dataset/processed --config data_config.yaml
set -eu
[ $# -gt 0 ] || set -- "$(dirname "$0")/../configs/quickstart.yml"
exec vaak data preprocess "$@"
