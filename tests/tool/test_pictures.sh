#!/bin/sh
# test_pictures.sh DRAW_PATTERNS PICTURES: the committed pictures are what the program draws.
set -eu
drawn=$(mktemp -d)
trap 'rm -rf "$drawn"' EXIT
"$1" "$drawn"
diff -r "$drawn" "$2"
