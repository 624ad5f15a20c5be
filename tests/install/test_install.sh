#!/bin/sh
# test_install.sh BUILD CMAKE GENERATOR CC CXX VERSION [MPIEXEC]: install into a new folder, then
# build and run programs against it as strangers would: through pkg-config, through find_package, and
# in C++ alone where there is a CXX. A project of their own, of which it is a part, is configured.
build=$1 cmake=$2 generator=$3 cc=$4 cxx=$5 version=$6 mpiexec=${7-}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
OMPI_MCA_orte_tmpdir_base=$work # of two mpirun at once one may remove the other's folder
export OMPI_MCA_orte_tmpdir_base

fail() {
    echo "test_install: $*" >&2
    [ ! -f "$work/log" ] || cat "$work/log" >&2
    exit 1
}

# Moved after the installation: neither package may remember where it was.
"$cmake" --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || fail "install"
mv "$work/first" "$work/in stall"
prefix="$work/in stall"

"$prefix/bin/ringattn" --version >"$work/log" 2>&1 || fail "the installed command does not start"
grep -qF "$version" "$work/log" || fail "the installed command does not print $version"
[ -f "$prefix/share/ringattn/configs/quickstart.yaml" ] || fail "no quickstart.yaml"

# What README.md shows of the library is what is compiled here.
# shellcheck disable=SC2016
sed -n '/^```c$/,/^```$/p' "$here/../../README.md" | sed '1d;$d' >"$work/shown"
sed -n '/^static ra_status attend/,/^}/p' "$here/consumer/consumer.c" >"$work/compiled"
[ -s "$work/shown" ] || fail "README.md shows no C"
cmp "$work/shown" "$work/compiled" >"$work/log" 2>&1 ||
    fail "README.md does not show consumer.c's attend()"

# The folder with a blank is for find_package; flags of pkg-config are split by the shell.
ln -s "$prefix" "$work/link"
pc=$(find "$work/link/" -name ringattn.pc)
PKG_CONFIG_PATH=$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion ringattn)" = "$version" ] || fail "pkg-config: not version $version"
# shellcheck disable=SC2046
"$cc" -std=c11 -Wall -Werror $(pkg-config --cflags ringattn) "$here/consumer/consumer.c" \
    $(pkg-config --libs ringattn) -lm -o "$work/by_pkg_config" >"$work/log" 2>&1 ||
    fail "cannot build through pkg-config"
LD_LIBRARY_PATH=$(dirname "$(dirname "$pc")") "$work/by_pkg_config" >"$work/log" 2>&1 ||
    fail "what was built through pkg-config fails"

"$cmake" -S "$here/consumer" -B "$work/consumer" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || fail "find_package"
"$cmake" --build "$work/consumer" >"$work/log" 2>&1 || fail "cannot build through find_package"
"$work/consumer/consumer" >"$work/log" 2>&1 || fail "what was built through find_package fails"

if [ -n "$cxx" ]; then
    "$cmake" -S "$here/consumer_cxx" -B "$work/in c++" -G "$generator" \
        -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 ||
        fail "find_package in C++"
    "$cmake" --build "$work/in c++" >"$work/log" 2>&1 ||
        fail "cannot build in C++ through find_package"
    "$work/in c++/consumer" >"$work/log" 2>&1 || fail "what was built in C++ fails"
fi

# Who can do without it, and lacks what it needs, is told so without an error.
mkdir "$work/optional"
cat >"$work/optional/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES C)
find_package(ringattn 0.1)
message("found: ${ringattn_FOUND}")
END
PKG_CONFIG_PATH='' PKG_CONFIG_LIBDIR="$work/nothing" "$cmake" -S "$work/optional" \
    -B "$work/optional/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 ||
    fail "a package that is optional is an error where its libraries are missing"
# A shared library brings its own.
[ -n "$(find "$prefix" -name 'libringattn.so*')" ] || grep -q '^found: \(0\|FALSE\)$' "$work/log" ||
    fail "found without its libraries: $(cat "$work/log")"
grep -q '^found: ' "$work/log" || fail "find_package does not return"

# Within another project: its tests and kind of build are its own. Folders may be absolute, too.
"$cmake" -S "$here/within" -B "$work/within" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
    -DRA_CUDA=OFF -DCMAKE_INSTALL_PREFIX="$work/put" -DCMAKE_INSTALL_LIBDIR="$work/put/libs" \
    -DCMAKE_INSTALL_INCLUDEDIR="$work/headers" >"$work/log" 2>&1 || fail "add_subdirectory"
"$(dirname "$cmake")/ctest" --test-dir "$work/within" -N >"$work/log" 2>&1
grep -q '^Total Tests: 1$' "$work/log" || fail "our tests are run in another project"
grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=$' "$work/within/CMakeCache.txt" ||
    fail "another project's kind of build is set"
pc=$work/within/ringattn/ringattn.pc
[ "$(pkg-config --variable=libdir "$pc")" = "$work/put/libs" ] || fail "libdir: $(cat "$pc")"
[ "$(pkg-config --variable=includedir "$pc")" = "$work/headers" ] ||
    fail "includedir: $(cat "$pc")"

for ranks in 1 3; do
    set --
    if [ "$ranks" -gt 1 ]; then
        [ -n "$mpiexec" ] || break # this build has one rank
        set -- "$mpiexec" -n "$ranks"
    fi
    "$@" "$work/consumer/ranks" >"$work/log" 2>&1 || fail "ranks.c fails on $ranks ranks"
    [ "$(grep -c "^rank . of $ranks: .* 0 wrong$" "$work/log")" -eq "$ranks" ] ||
        fail "not every one of $ranks ranks says so"
done
