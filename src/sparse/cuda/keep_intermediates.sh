#!/bin/sh
# keep_intermediates.sh FOLDER COMPILER ARGUMENT...: run the compiler, and keep for tests what it
# says, in OBJECT.ptxas, and the PTX that it makes, in FOLDER.
folder=$1
shift
object=
previous=
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    previous=$argument
done
[ -n "$object" ] || exec "$@"
mkdir -p "$object.keep" "$folder" || exit 1
"$@" --keep --keep-dir "$object.keep" 2>"$object.ptxas"
code=$?
for ptx in "$object.keep"/*.ptx; do
    [ -f "$ptx" ] && mv "$ptx" "$folder"
done
rm -rf "$object.keep"
# What ptxas says of every kernel would drown what matters.
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.ptxas" >&2
exit $code
