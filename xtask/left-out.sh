#!/bin/sh
# Prints the tests that `make test` left out on this machine, and the reasons.
# Given a file of permitted tests with their reasons, lines as in target/left-out.txt, fails if any other test was left out, or one
# of them for another reason.
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
[ -e "$1" ] || { echo "left out: $1 does not exist" >&2; exit 1; }
more=$(sort -u "$list" | while IFS= read -r line; do
    grep -Fqx -e "$line" "$1" || printf '%s\n' "$line" | sed 's/\t/: /; s/^/  /'
done)
[ -z "$more" ] || { printf 'left out, but not in %s with this reason:\n%s\n' "$1" "$more" >&2; exit 1; }
