#!/bin/sh
# Prints the arguments with which go test runs the scenarios that claims rest on: those that
# SECURITY.md names, and those behind the words "nothing is lost". A name selects the tests
# of that name in all packages that are printed. The packages begin with the one that takes longest.
set -eu

cd "$(dirname "$0")/.."
named=$(grep -oE '\[Test[A-Za-z0-9]+\]\(tests/e2e/[a-z0-9]+/' SECURITY.md | sed -E 's|^\[(Test.*)\]\(tests/e2e/(.*)/$|\2 \1|' | sort)
printf '%s\n' "$named" '
ha TestThreeServers
keep TestLoseTheBox
kill9 TestKill9
kill9 TestPowerCut
policy TestFirstPacket
policy TestOpenConnections
restart TestRestarts
snapshot TestInterruptedRestore
storage TestKill9' | awk '
	NF == 2 && !seen[$1]++ { packages = packages " ./tests/e2e/" $1 }
	NF == 2 && !seen[$2]++ { tests = tests "|" $2 }
	END { printf "-run ^(%s)$%s\n", substr(tests, 2), packages }'
