#!/bin/sh
# A C program, a C++ program, a Lua script and a shell user find an installed quire by what was installed
# alone. Installs into a temporary DESTDIR, and checks that uninstall leaves nothing; with INSTALLED set,
# as make installcheck does, takes what is in place ($INSTALLED is its DESTDIR).
# SPDX-License-Identifier: Apache-2.0
make=${MAKE:-make}
unset LUA_PATH QUIRE_LIBRARY QUIRE_COMMAND MAKEFLAGS MFLAGS MAKELEVEL

work=`mktemp -d` || exit 1
trap 'rm -rf "$work"' EXIT
number=0
failures=0
# same DESCRIPTION EXPECTED COMMAND...: right if the command succeeds and prints that.
same() {
    number=$((number + 1))
    what=$1 expected=$2
    shift 2
    if got=`"$@" 2>"$work/errors"` && [ "$got" = "$expected" ]; then
        echo "ok $number - $what"
    else
        failures=$((failures + 1))
        echo "not ok $number - $what"
        printf 'expected: %s\ngot: %s\n' "$expected" "$got" | cat - "$work/errors" | sed 's/^/# /'
    fi
}
skip() { number=$((number + 1)); echo "ok $number - $1 # SKIP $2"; }

# The folders as configured, without and with DESTDIR.
value() { "$make" -s -C "$QUIRE_BUILD" print-"$1"; }
version=`value VERSION` libdir=`value libdir` includedir=`value includedir` bindir=`value bindir` \
    luadir=`value luadir` ||
    { echo "Bail out! $make does not print the folders"; exit 1; }

echo 1..9
if [ -n "${INSTALLED+set}" ]; then
    root=$INSTALLED
    skip "make install" "installcheck"
else
    root=$work/root
    same "make install" "" sh -c '"$1" -s -C "$QUIRE_BUILD" install DESTDIR="$2" >"$2.log"' sh "$make" "$root"
fi

cat >"$work/version.c" <<'END'
#include <quire.h>
#include <stdio.h>
int main(void)
{
    quire_decode_args args = QUIRE_DECODE_ARGS_INIT;
    size_t bytes = 0;
    /* No query yet: a refusal, in words. */
    if (quire_decode_workspace_size(&args, &bytes) == QUIRE_OK || quire_last_error()[0] == '\0')
        return 1;
    printf("%d.%d.%d %s\n", QUIRE_VERSION_MAJOR, QUIRE_VERSION_MINOR, QUIRE_VERSION_PATCH, quire_version());
    return 0;
}
END
cp "$work/version.c" "$work/version.cc"
PKG_CONFIG_PATH=$root$libdir/pkgconfig
# An installed module knows where the library is; a program, and a module in a DESTDIR, has to be told.
library_path=$root$libdir
[ -n "$root" ] && module_path=$library_path || module_path=
if [ -n "$root" ]; then PKG_CONFIG_SYSROOT_DIR=$root; export PKG_CONFIG_SYSROOT_DIR; fi
export PKG_CONFIG_PATH
if command -v pkg-config >/dev/null; then
    same "the version of quire.pc" "$version" pkg-config --modversion quire
    flags="`pkg-config --cflags quire` `pkg-config --libs quire`"
else
    skip "the version of quire.pc" "found no pkg-config"
    flags="-I$root$includedir -L$root$libdir -lquire"
fi
# A library with AddressSanitizer loads into other programs only if the runtime is there first.
preload() { LD_LIBRARY_PATH=$library_path LD_PRELOAD=$ASAN_RUNTIME ASAN_OPTIONS=detect_leaks=0 "$@"; }
same "a C program compiles and links" "" sh -c '$CC -Wall -Wextra -Wpedantic -Werror -o "$1" "$1.c" $2' \
    sh "$work/version" "$flags"
same "and runs with header and library of one version" "$version $version" preload "$work/version"
if [ -n "$CXX" ]; then
    same "a C++ program compiles and links" "" sh -c '$CXX -Wall -Wextra -Werror -o "$1" "${1%+}.cc" $2' \
        sh "$work/version+" "$flags"
    same "and runs with header and library of one version" "$version $version" preload "$work/version+"
else
    skip "a C++ program compiles and links" "found no C++ compiler"
    skip "and runs with header and library of one version" "found no C++ compiler"
fi

if [ -n "$LUAJIT" ]; then
    same "the Lua module" "$version" env LD_LIBRARY_PATH="$module_path" LUA_PATH="$root$luadir/?.lua" \
        LD_PRELOAD="$ASAN_RUNTIME" ASAN_OPTIONS=detect_leaks=0 \
        "$LUAJIT" -e 'require "quire"; io.write(require("quire.library").version)'
else
    skip "the Lua module" "found no luajit"
fi
if [ -z "$LUAJIT" ] || ! "$LUAJIT" -e 'require "argparse"; require "cjson"' 2>/dev/null; then
    skip "the quire command" "found no luajit, argparse or cjson"
elif [ -n "$ASAN_RUNTIME" ]; then
    skip "the quire command" "its luajit lacks the sanitizer's runtime"
else
    same "the quire command" "" env LD_LIBRARY_PATH="$module_path" \
        sh -c 'cd / && "$1/quire" info >/dev/null' sh "$root$bindir"
fi

if [ -n "${INSTALLED+set}" ]; then
    skip "make uninstall leaves no file" "installcheck"
else
    same "make uninstall leaves no file" "" \
        sh -c '"$1" -s -C "$QUIRE_BUILD" uninstall DESTDIR="$2" >"$2.log" && find "$2" ! -type d' sh "$make" "$root"
fi
[ -z "${INSTALLED+set}" ] || exit $failures
