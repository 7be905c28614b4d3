#!/usr/bin/env bash
# edges.sh FLOW EXAMPLES: the output of the examples for the smallest parameters, and for smaller
# ones.
set -uo pipefail
flow=$1 examples=$2
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
failed=0

# prints TEXT EXAMPLE [OPTION…]
prints() {
  local text=$1 example=$2
  shift 2
  local output
  output=$("$flow" run "$examples/$example" --state "$state/state" "$@" 2>&1)
  if [[ $output != *"$text"* ]]; then
    printf 'examples/%s %s does not say `%s`:\n%s\n' "$example" "$*" "$text" "$output"
    failed=1
  fi
}

prints '"exact":0,"simulated":{"high":0.0,"low":0.0,' montecarlo --param paths=1000 --param volatility=0
prints '"exact":20.0,"simulated":{"high":20.0,"low":20.0,' \
  montecarlo --param paths=1000 --param years=0 --param spot=125
prints '"standard_errors":0}' montecarlo --param paths=1000 --param volatility=0 --param spot=120
prints '"exact":100.0,' montecarlo --param paths=1000 --param strike=0
prints 'the parameter `spot` must be at least 0.01' montecarlo --param spot=0

prints 'the sweep has nothing to try' sweep --param lrs=
prints 'the sweep has nothing to try' sweep --param widths=

: >"$state/empty"
prints 'the text is empty' gpt --param text="$state/empty"
printf 'to be or not to be, that is %.0s' {1..25} | head -c 599 >"$state/short"
prints 'the text has 599 characters, 59 of them for the evaluation, and the model sees 64' \
  gpt --param text="$state/short"
prints 'of 700 characters or more' gpt --param text="$state/short"
printf 'to be or not to be, that is %.0s' {1..25} >"$state/enough"
prints '"characters":64' gpt --param text="$state/enough" --param steps=1 --param letters=1
exit $failed
