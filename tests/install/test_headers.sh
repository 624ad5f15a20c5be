#!/bin/sh
# test_headers.sh INCLUDE CC CXX: every public header compiles alone, as C11 and as C++17.
include=$1 cc=$2 cxx=$3
failures=0 count=0
for header in "$include"/ringattn/*.h; do
    name=ringattn/$(basename "$header")
    count=$((count + 1))
    echo "#include <$name>" | "$cc" -std=c11 -pedantic -Wall -Wextra -Werror -I"$include" \
        -fsyntax-only -x c - || failures=$((failures + 1))
    echo "#include <$name>" | "$cxx" -std=c++17 -pedantic -Wall -Wextra -Werror -I"$include" \
        -fsyntax-only -x c++ - || failures=$((failures + 1))
done
[ "$count" -ge 8 ] || { echo "test_headers: only $count headers in $include" >&2; exit 1; }
[ "$failures" -eq 0 ]
