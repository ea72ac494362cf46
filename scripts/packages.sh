#!/bin/sh
# Lists the packages of kedge, but the tests of the whole program, that import
# k8s.io/kubernetes, directly or not (heavy), or do not (light).
#
#   packages.sh light|heavy
set -eu

# Not in the pipe: there a failure of go list would go unseen.
packages=$(go list -f '{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...)
printf '%s\n' "$packages" | awk -v want="$1" '
	$1 ~ /\/tests(\/|$)/ { next }
	{ kind = / k8s\.io\/kubernetes\// ? "heavy" : "light" }
	kind == want { print $1 }'
