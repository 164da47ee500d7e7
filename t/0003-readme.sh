#!/bin/sh
# The code in README.md stands in the examples, which other tests run.
# SPDX-License-Identifier: Apache-2.0
number=0
# quoted LANGUAGE FILE: every line of README.md's blocks of that language is in FILE.
quoted() {
    number=$((number + 1))
    missing=`awk -v language="$1" '
        FNR == NR { example[$0] = 1; next }
        $0 == "\`\`\`" language { inside = 1; next }
        $0 == "\`\`\`" { inside = 0 }
        inside && $0 != "" { lines++; if (!($0 in example)) print }
        END { if (!lines) print "README.md has no " language }' "$2" "$QUIRE_SOURCE/README.md"` ||
        missing="awk failed$missing"
    if [ -z "$missing" ]; then
        echo "ok $number - README.md's $1 is in ${2##*/}"
    else
        echo "not ok $number - README.md's $1 is in ${2##*/}"
        printf '%s\n' "$missing" | sed 's/^/# /'
    fi
}

echo 1..2
quoted c "$QUIRE_SOURCE/doc/example.c"
quoted lua "$QUIRE_SOURCE/doc/example.lua"
