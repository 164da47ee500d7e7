#!/bin/sh
# quire(3) tells of all that quire.h declares, and formats without a warning.
# SPDX-License-Identifier: Apache-2.0
page=$QUIRE_SOURCE/doc/quire.3
header=$QUIRE_SOURCE/lib/quire.h
number=0
failures=0
# lacks DESCRIPTION FINDINGS: right if nothing was found.
lacks() {
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        failures=$((failures + 1))
        echo "not ok $number - $1"
        printf '%s\n' "$2" | sed 's/^/# /'
    fi
}

functions=`sed -n 's/^QUIRE_API .*[ *]\(quire_[a-z0-9_]*\)(.*/\1/p' "$header"`
fields=`sed -n '/^typedef struct quire_decode_args {/,/^}/s/^    [a-z][^;]*[ *]\([a-z0-9_]*\);.*/\1/p' "$header"`
statuses=`sed -n 's/^    \(QUIRE_ERROR_[A-Z]*\) = .*/\1/p' "$header"`

echo 1..6
lacks "the header was read" "`[ -n "$functions" ] && [ -n "$fields" ] && [ -n "$statuses" ] ||
    echo "functions: $functions; fields: $fields; statuses: $statuses"`"
lacks "every function is named" "`for f in $functions; do grep -q "^\.Nm $f\( ,\)*$" "$page" || echo $f; done`"
lacks "every function has its prototype" "`for f in $functions; do grep -q "^\.Fn $f " "$page" || echo $f; done`"
lacks "every field of quire_decode_args has its item" \
    "`for f in $fields; do grep -q "^\.It Va .*\<$f\>" "$page" || echo $f; done`"
lacks "every status has its item" "`for s in $statuses; do grep -q "^\.It Dv $s$" "$page" || echo $s; done`"
if command -v groff >/dev/null; then
    lacks "it formats without a warning" "`groff -mandoc -Tutf8 -ww -z "$page" 2>&1`"
else
    number=$((number + 1))
    echo "ok $number - it formats without a warning # SKIP found no groff"
fi
exit $failures
