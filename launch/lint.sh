#!/usr/bin/env bash
# lint.sh [format|tidy]: whether the tree is as .clang-format and .clang-tidy (release 14) want it.
set -euo pipefail
# shellcheck source=launch/common.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
cd "$root"

check_format() {
    command -v clang-format-14 >/dev/null || die "clang-format-14 is not there"
    find include src tests docs -regex '.*\.\(c\|h\|cpp\|cu\|cuh\)' -print0 |
        xargs -0 clang-format-14 --dry-run -Werror
}

# One process per file and core; quiet but for findings. Files that the release build compiles.
check_tidy() {
    command -v clang-tidy-14 >/dev/null || die "clang-tidy-14 is not there"
    quietly build/release/configure.log cmake --preset release # says how new files are compiled
    find src -name '*.c' -print0 | xargs -0 -n 1 -P "$(nproc)" \
        sh -c 'grep -qF "/$1\"" build/release/compile_commands.json || exit 0
               clang-tidy-14 --quiet -p build/release "$1" 2>/dev/null' tidy
}

case ${1:-all} in
format) check_format ;;
tidy) check_tidy ;;
all) check_format && check_tidy ;;
*) refuse "lint.sh [format|tidy]" ;;
esac
