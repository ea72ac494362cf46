#!/bin/sh
# Runs every fuzz target (testing.F) of kedge, one after the other, each for a time
# such as 2s or 1h. It fails if a target has found something. The input is then in
# testdata/fuzz of the package: keep the file, because every later test begins with
# it.
#
#   fuzz.sh quick TIME     measures coverage of kedge's own packages only
#   fuzz.sh thorough TIME  measures coverage of all packages, with the standard
#                          library, and continues from what earlier runs found
set -eu

kind=$1 time=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

targets=$(grep -r --include='*_test.go' '^func Fuzz' cmd internal scripts tests |
	sed -n 's|^\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9]*\)(.*|\1 \2|p' | sort)
packages=$(printf '%s\n' "$targets" | sed 's|^|./|; s| .*||' | uniq)

# go test -fuzz gives this flag to all packages, which would compile all of them
# again.
case $kind in
quick)
	corpus=$work/corpus
	coverage='-gcflags=github.com/kedge-dev/kedge/...=-d=libfuzzer'
	;;
thorough)
	corpus=$(go env GOCACHE)/fuzz/kedge
	coverage=-fuzz=.
	;;
*)
	echo "fuzz.sh: $kind is neither quick nor thorough" >&2
	exit 2
	;;
esac
# One package at a time: -fuzz takes no more, and several packages may have one name.
for package in $packages; do
	go test -c "$coverage" -o "$work/$package.test" "$package"
done

# Interrupting the fuzzer, but not its workers, ends it cleanly. With -test.fuzztime it
# sometimes fails at its end (context deadline exceeded: internal/fuzz/fuzz.go, stop).
#upstream:relies-on std/internal/fuzz/fuzz.go CoordinateFuzzing
printf '%s\n' "$targets" | {
	failed=''
	while read -r package target; do
		binary=$work/./$package.test
		if (cd "$package" && timeout --foreground --preserve-status --signal=INT --kill-after=5m "$time" "$binary" -test.run='^$' -test.fuzz="^$target\$" \
			-test.fuzzminimizetime=100x -test.fuzzcachedir="$corpus/$package") >"$work/log" 2>&1 </dev/null; then
			echo "$package $target: $(grep -o 'execs: [0-9]*' "$work/log" | tail -n 1)"
		else
			cat "$work/log"
			failed="$failed $package.$target"
		fi
	done
	if [ -n "$failed" ]; then
		echo "fuzz.sh: these targets have found something:$failed" >&2
		exit 1
	fi
}
