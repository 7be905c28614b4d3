#!/usr/bin/env bash
# Serves the digits as the name `digits`, replaces the version by one with a smaller network in the
# steps of its canary, and takes the first version back.
#
#   examples/digits/rollover.sh [STATE]
#
# Needs `flow` in the PATH, or the variable FLOW with its path. STATE is a folder (.flow).
set -euo pipefail
flow=${FLOW:-flow}
example=$(dirname "${BASH_SOURCE[0]}")
state=${1:-.flow}

"$flow" run "$example" --state "$state" --name digits --detach
trap '"$flow" stop digits --state "$state"' EXIT
"$flow" run "$example" --state "$state" --name digits --param hidden=32 --detach
"$flow" services --state "$state"
"$flow" rollback digits --state "$state" --detach
"$flow" services --state "$state"
