#!/bin/sh
# Installs the system packages that the build needs, and with `test` or `bench` those that tests or benches need as well.
# Prints their names. Does nothing if all are installed.
set -eu

missing=""
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
[ -e /usr/include/rocksdb/c.h ] || missing="$missing librocksdb-dev"
[ -e /usr/include/libelf.h ] || missing="$missing libelf-dev"
[ -e /usr/include/zlib.h ] || missing="$missing zlib1g-dev"
command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
{ command -v clang-16 || command -v clang-17 || command -v clang-18 || command -v clang-19; } >/dev/null 2>&1 || missing="$missing clang-16"
if [ "${1:-}" = test ]; then
    # A client of the agent's TCP.
    command -v curl >/dev/null 2>&1 || missing="$missing curl"
    command -v redis-check-rdb >/dev/null 2>&1 || missing="$missing redis-tools"
    # Runs programs of the C library. Valgrind's own suppressions need that library's symbols.
    command -v valgrind >/dev/null 2>&1 || missing="$missing valgrind"
    [ -e /usr/lib/debug/.build-id ] || missing="$missing libc6-dbg"
    # A client with another implementation of gRPC, run by Debian's own Python.
    [ -e /usr/lib/python3/dist-packages/grpc_tools ] || missing="$missing python3-grpcio python3-grpc-tools"
fi
if [ "${1:-}" = bench ]; then
    # Turns on GRO in benches of TCP.
    command -v ethtool >/dev/null 2>&1 || missing="$missing ethtool"
fi
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this machine has no apt-get; install the equivalents of Debian's:$missing" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1; then
    as_root="sudo"
else
    echo "setup: run as root: apt-get update && apt-get install -y$missing" >&2
    exit 1
fi
echo "setup: installing Debian packages:$missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # a list of packages
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
