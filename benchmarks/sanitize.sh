#!/bin/sh
# The C++ kernels under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer. Any report fails.
# Built without OpenMP (its runtime is not instrumented: false alarms); sanitize.cpp brings threads of its own.
set -eu
cd "$(dirname "$0")"
sources=../src/sage_snn/kernels/cpp
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for kind in address,undefined thread; do
    echo "== -fsanitize=$kind"
    ${CXX:-c++} -std=c++17 -O1 -g -march=native -ffp-contract=off -fno-omit-frame-pointer -Wno-psabi -Wno-unknown-pragmas \
        -fsanitize=$kind -fno-sanitize-recover=all -pthread $sources/*.cpp sanitize.cpp -o "$folder/driver"
    ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS=halt_on_error=1 "$folder/driver"
done
