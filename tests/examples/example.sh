#!/usr/bin/env bash
# example.sh FLOW EXAMPLE [OPTION…]: runs it in a state of its own; a failed task fails the test.
set -euo pipefail
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
"$1" run "$2" --state "$state/state" "${@:3}"
