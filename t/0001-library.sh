#!/bin/sh
# What the built library shows and needs: symbols, other libraries, segments, size.
# SPDX-License-Identifier: Apache-2.0
for tool in readelf nm; do
    command -v $tool >/dev/null || { echo "1..0 # SKIP found no $tool (binutils)"; exit 0; }
done
number=0
# check DESCRIPTION FINDINGS: right if nothing was found.
check() {
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        printf '%s\n' "$2" | sed 's/^/# /'
    fi
}
# minus A B: words of A that B lacks.
minus() { for word in $1; do case " $2 " in *" $word "*) ;; *) echo "$word" ;; esac; done; }

sanitized=`readelf -d "$QUIRE_LIBRARY" | grep -c 'NEEDED.*lib[au]b*san'`
declared=`sed -n 's/^QUIRE_API .*[ *]\(quire_[a-z0-9_]*\)(.*/\1/p' "$QUIRE_SOURCE/lib/quire.h" | tr '\n' ' '`
exported=`nm -D --defined-only "$QUIRE_LIBRARY" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | tr '\n' ' '`

echo 1..7
case $declared in
    *quire_decode\ *) check "quire.h declares quire_decode" "" ;;
    *) check "quire.h declares quire_decode" "found only: $declared" ;;
esac
check "every declared function is exported" "`minus "$declared" "$exported"`"
if [ "$sanitized" -gt 0 ]; then
    number=$((number + 1)); echo "ok $number - nothing else is exported # SKIP the sanitizers add symbols"
    number=$((number + 1))
    echo "ok $number - needs the C library and OpenMP at most # SKIP the sanitizers add libraries"
else
    check "nothing else is exported" "`minus "$exported" "$declared"`"
    needed=`readelf -d "$QUIRE_LIBRARY" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sed 's/\.so.*//' | tr '\n' ' '`
    allowed="libc libm libdl libpthread libgomp libomp ld-linux-x86-64 ld-linux-aarch64"
    check "needs the C library and OpenMP at most" "`minus "$needed" "$allowed"`"
fi
check "has no text relocation" "`readelf -d "$QUIRE_LIBRARY" | grep TEXTREL`"
check "has no executable stack" "`readelf -lW "$QUIRE_LIBRARY" |
    awk '$1 == "GNU_STACK" { flags = $7 } END { if (flags != "RW") print "flags of GNU_STACK: " flags }'`"

# What strip leaves are the segments; debugging information is in none.
if [ "$sanitized" -gt 0 ]; then
    number=$((number + 1))
    echo "ok $number - is at most 10 MB without debugging information # SKIP the sanitizers add code"
else
    bytes=0
    for size in `readelf -lW "$QUIRE_LIBRARY" | awk '$1 == "LOAD" { print $5 }'`; do bytes=$((bytes + size)); done
    check "is at most 10 MB without debugging information" \
        "`[ "$bytes" -gt 0 ] && [ "$bytes" -le 10000000 ] || echo "$bytes bytes"`"
fi
