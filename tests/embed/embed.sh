#!/usr/bin/env bash
# embed.sh BUILD EXAMPLE COMPILER: installs BUILD, builds EXAMPLE against it in both ways, runs it twice, and builds and runs
# the code of docs/embedding.md.
set -euo pipefail
build=$1 example=$2 compiler=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/prefix" >"$folder/install.log" || { cat "$folder/install.log"; exit 1; }
for file in bin/flow bin/flow-executor bin/flow-front include/flow/flow.hpp; do
  [[ -e $folder/prefix/$file ]] || { echo "the install lacks $file"; exit 1; }
done

expect() {  # WHAT PATTERN FILE
  grep -q -- "$2" "$3" || { echo "failed: $1"; cat "$3"; exit 1; }
}

cmake -S "$example" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror" >"$folder/log" || { cat "$folder/log"; exit 1; }
cmake --build "$folder/build" >"$folder/log" || { cat "$folder/log"; exit 1; }
"$folder/build/embed" "$example/pipeline.lua" "$folder/state" "$folder/build/smooth.so" >"$folder/first" || { cat "$folder/first"; exit 1; }
expect "the native task ran" "task half running" "$folder/first"
expect "the result arrived" 'result {.*"text":"320 x 240"}' "$folder/first"
expect "the operation ran in a task" '"last":318.5' "$folder/first"

# pkg-config, and a second run that takes everything from the cache.
config=$(find "$folder/prefix" -name flow.pc -printf '%h')
flags=$(PKG_CONFIG_PATH=$config pkg-config --cflags --libs flow)
libs=$(find "$folder/prefix" -name libflow.so -printf '%h')
# shellcheck disable=SC2086  # flags are words
"$compiler" -std=c++20 "$example/main.cc" $flags -Wl,-rpath,"$libs" -o "$folder/embed"
"$folder/embed" "$example/pipeline.lua" "$folder/state" "$folder/build/smooth.so" >"$folder/second" || { cat "$folder/second"; exit 1; }
if grep -q "task half running" "$folder/second"; then echo "failed: the second run is cached"; cat "$folder/second"; exit 1; fi
expect "the same result" 'result {.*"text":"320 x 240"}' "$folder/second"

# Other bytes in the library: only the tasks that use it run again.
sed 's/sum \/ (double)/1 + sum \/ (double)/' "$example/smooth.c" >"$folder/build/smooth.c"
cc -shared -fPIC -I"$folder/prefix/include" "$folder/build/smooth.c" -o "$folder/build/smooth.so"
"$folder/embed" "$example/pipeline.lua" "$folder/state" "$folder/build/smooth.so" >"$folder/third" || { cat "$folder/third"; exit 1; }
expect "the new operation ran" '"last":319.5' "$folder/third"
if grep -q "task half running" "$folder/third"; then echo "failed: only what took the library runs"; cat "$folder/third"; exit 1; fi
if "$folder/embed" "$example/pipeline.lua" "$folder/state" "$folder/none.so" 2>"$folder/refused"; then echo "failed: a library that is not there"; exit 1; fi
expect "what is missing is named" "there is no shared library .*/none.so" "$folder/refused"

# Another program reads the same state.
"$folder/prefix/bin/flow" ls --state "$folder/state" >"$folder/ls"
[[ $(wc -l <"$folder/ls") == 3 ]] || { echo "failed: flow ls lists the runs"; cat "$folder/ls"; exit 1; }

# The code of the document, in a project of its own.
mkdir "$folder/document" && cd "$folder/document"
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$document" | sed '1d;$d'; }  # LANGUAGE
document=$(dirname "$example")/../docs/embedding.md
{
  block cpp | grep '^#include'
  printf '#include <cstdio>\nint main() {\n'
  block cpp | grep -v '^#include'
  printf 'std::puts(flow::to_json(result).c_str());\n}\n'
} >mine.cc
printf 'cmake_minimum_required(VERSION 3.16)\nproject(mine LANGUAGES C CXX)\nadd_executable(mine mine.cc)\n%s\n' "$(block cmake)" >CMakeLists.txt
cat >pipeline.lua <<'LUA'
local flow = require "flow"
local resize = flow.native("resize")
return flow.pipeline("document", { width = flow.param.int {} }, function(p) return resize(p.width) end)
LUA
cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" -DCMAKE_CXX_COMPILER="$compiler" >log || { cat log; exit 1; }
cmake --build build >log || { cat log; exit 1; }
build/mine >out || { cat out; exit 1; }
expect "the document's host prints events" '"event"' out
expect "the document's host has the result" '^320$' out
echo "an installed flow builds and runs a host"
