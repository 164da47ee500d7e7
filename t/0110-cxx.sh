#!/bin/sh
# quire.h as C++: it compiles without a warning, also behind dlpack.h, and the initialiser, which C++ needs in
# another form, sets what the library sets.
# SPDX-License-Identifier: Apache-2.0
if [ -z "$CXX" ] || ! command -v $CXX >/dev/null; then
    echo "1..0 # SKIP found no C++ compiler"
    exit 0
fi
work=`mktemp -d` || exit 1
trap 'rm -rf "$work"' EXIT
number=0
failures=0
# right DESCRIPTION COMMAND...
right() {
    number=$((number + 1))
    what=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        echo "ok $number - $what"
    else
        failures=$((failures + 1))
        echo "not ok $number - $what"
        sed 's/^/# /' "$work/output"
    fi
}

cat >"$work/plain.cc" <<'END'
#include <quire.h>
#include <cstdio>
#include <cstring>
int main()
{
    quire_decode_args macro = QUIRE_DECODE_ARGS_INIT, function;
    quire_decode_args_init(&function);
    if (std::memcmp(&macro, &function, sizeof macro) != 0) {
        std::puts("the macro and quire_decode_args_init differ");
        return 1;
    }
    if (quire_decode(&macro, nullptr) != QUIRE_ERROR_TYPE) {
        std::puts("quire_decode without a query is not QUIRE_ERROR_TYPE");
        return 1;
    }
    return 0;
}
END
{ echo '#include <dlpack/dlpack.h>'; cat "$work/plain.cc"; } >"$work/behind.cc"

libraries=`dirname "$QUIRE_LIBRARY"`
flags="-Wall -Wextra -Wpedantic -Werror -I$QUIRE_SOURCE/lib"
# A library with the sanitizers wants their runtime first.
[ -z "$ASAN_RUNTIME" ] || flags="$flags -fsanitize=address,undefined"
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

echo 1..4
for standard in c++11 c++17; do
    right "compiles as $standard" $CXX -std=$standard $flags -o "$work/plain" "$work/plain.cc" -L"$libraries" -lquire
done
right "the initialiser sets the defaults" "$work/plain"
if echo '#include <dlpack/dlpack.h>' | $CXX -E -x c++ - >/dev/null 2>&1; then
    right "compiles behind dlpack.h" $CXX -std=c++11 $flags -o "$work/behind" "$work/behind.cc" -L"$libraries" -lquire
else
    number=$((number + 1))
    echo "ok $number - compiles behind dlpack.h # SKIP found no dlpack/dlpack.h (Debian: libdlpack-dev)"
fi
exit $failures
