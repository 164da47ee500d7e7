#!/bin/sh
# doc/example.c compiles without a warning, and says what its reader is led to expect.
# SPDX-License-Identifier: Apache-2.0
work=`mktemp -d` || exit 1
trap 'rm -rf "$work"' EXIT
number=0
failures=0
# result STATUS DESCRIPTION
result() {
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        failures=$((failures + 1))
        echo "not ok $number - $2"
        sed 's/^/# /' "$work/output"
    fi
}
# says DESCRIPTION PATTERN
says() { grep -q -e "$2" "$work/output"; result $? "$1"; }

echo 1..7
libraries=`dirname "$QUIRE_LIBRARY"`
# A library with the sanitizers wants their runtime first.
flags=
[ -z "$ASAN_RUNTIME" ] || flags="-fsanitize=address,undefined"
$CC -std=c11 -Wall -Wextra -Wpedantic -Werror $flags -I"$QUIRE_SOURCE/lib" -o "$work/example" \
    "$QUIRE_SOURCE/doc/example.c" -L"$libraries" -lquire -lm >"$work/output" 2>&1
result $? "compiles as strict C11"
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/example" >"$work/output" 2>&1
result $? "runs"
says "the short chat" "^chat 0:   37 tokens on  3 pages from page 159, lse .*, out [+-]0\.[0-9]* "
says "the middle chat" "^chat 1:  512 tokens on 32 pages from page 158, lse .*, out [+-]0\.[0-9]* "
says "the long chat" "^chat 2: 1300 tokens on 82 pages from page 157, lse .*, out [+-]0\.[0-9]* "
says "the result is right" "^24 rows against float64: 0 elements out of bounds, relative error within its bound$"
says "a mistake is told in words" "^refused: request 1: seq_lens = 513 needs 33 pages of 16, its row owns 32$"
exit $failures
