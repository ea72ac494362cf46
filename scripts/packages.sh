#!/bin/sh
# Lists the packages of kedge, except the tests of the whole program: those that
# import k8s.io/kubernetes, directly or not (heavy), or those that do not (light).
#
#   packages.sh light|heavy
set -eu

# go list is not in the pipe, because there its failure would go unnoticed.
packages=$(go list -f '{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...)
printf '%s\n' "$packages" | awk -v want="$1" '
	$1 ~ /\/tests(\/|$)/ { next }
	{ kind = / k8s\.io\/kubernetes\// ? "heavy" : "light" }
	kind == want { print $1 }'
