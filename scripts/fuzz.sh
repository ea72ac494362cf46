#!/bin/sh
# Runs every fuzz target (testing.F) of kedge, one after the other, each for a time
# such as 2s or 1h. Fails if one has found something, which is then in testdata/fuzz
# of its package: keep the file, as every later test begins with it.
#
#   fuzz.sh quick TIME     follows what inputs do in kedge's own packages
#   fuzz.sh thorough TIME  follows it in everything below too, the standard library
#                          included, and goes on from what earlier runs have found
set -eu

kind=$1 time=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

targets=$(grep -r --include='*_test.go' '^func Fuzz' cmd internal scripts tests |
	sed -n 's|^\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9]*\)(.*|\1 \2|p' | sort)
packages=$(printf '%s\n' "$targets" | sed 's|^|./|; s| .*||' | uniq)

# The flag is what go test -fuzz gives to all packages, which are then compiled anew.
case $kind in
quick)
	corpus=$work/corpus
	# shellcheck disable=SC2086
	go test -c -gcflags='github.com/kedge-dev/kedge/...=-d=libfuzzer' -o "$work/" $packages
	;;
thorough)
	corpus=$(go env GOCACHE)/fuzz/kedge
	# The flag takes one package at a time.
	for package in $packages; do
		go test -c -fuzz=. -o "$work/" "$package"
	done
	;;
*)
	echo "fuzz.sh: $kind is neither quick nor thorough" >&2
	exit 2
	;;
esac

# An interrupt of the fuzzer, and not of its workers, ends it well. With -test.fuzztime
# it fails at its end at times (context deadline exceeded: internal/fuzz/fuzz.go, stop).
#upstream:relies-on std/internal/fuzz/fuzz.go CoordinateFuzzing
printf '%s\n' "$targets" | {
	failed=''
	while read -r package target; do
		binary=$work/$(basename "$package").test
		if (cd "$package" && timeout --foreground --preserve-status --signal=INT --kill-after=5m "$time" "$binary" -test.run='^$' -test.fuzz="^$target\$" \
			-test.fuzzminimizetime=100x -test.fuzzcachedir="$corpus/$package") >"$work/log" 2>&1 </dev/null; then
			echo "$package $target: $(grep -o 'execs: [0-9]*' "$work/log" | tail -n 1)"
		else
			cat "$work/log"
			failed="$failed $package.$target"
		fi
	done
	if [ -n "$failed" ]; then
		echo "fuzz.sh: these have found something:$failed" >&2
		exit 1
	fi
}
