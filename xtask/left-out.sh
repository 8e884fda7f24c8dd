#!/bin/sh
# Prints the tests that `make test` left out on this machine, and the reasons.
# Given a file of permitted tests, one per line without the reason, fails if any other test was left out.
set -eu

list=target/left-out.txt
[ -e "$list" ] || { echo "left out: $list does not exist: run make test" >&2; exit 1; }
if [ -s "$list" ]; then
    echo "left out on this machine, and why:"
    sort -u "$list" | sed 's/\t/: /; s/^/  /'
else
    echo "no test was left out"
fi
[ $# -gt 0 ] || exit 0
more=$(cut -f1 "$list" | sort -u | while read -r test; do grep -Fqx "$test" "$1" || echo "  $test"; done)
[ -z "$more" ] || { printf 'left out, but not in %s:\n%s\n' "$1" "$more" >&2; exit 1; }
