#!/bin/sh
# keep_ptxas_log.sh COMPILER ARGUMENT...: run it, and keep what it says in OBJECT.ptxas.
object=
previous=
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    previous=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.ptxas"
code=$?
# What ptxas says of every kernel would drown what matters.
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.ptxas" >&2
exit $code
