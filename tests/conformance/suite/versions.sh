#!/bin/sh
# Gives the modules of the conformance tests the versions of kedge's own go.mod,
# after those changed. Without it the tests still build, as long as Kubernetes
# is the same, but what was compiled for kedge is compiled again for them.
set -eu

cd "$(dirname "$0")"
own=../../../go.mod
kubernetes=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\)$|\1|p' $own)

# All modules of kedge: tidy drops those that the tests do not need.
sed -i '/^replace /,$d' go.mod
sed -n '/^replace (/,$p' $own >>go.mod
awk '/^require \(/ { list = 1; next } /^\)/ { list = 0 } list && NF > 1 { print "-require=" $1 "@" $2 }' $own | xargs go mod edit
# Of the replaced ones tidy takes what upstream asks for.
go mod edit -require="k8s.io/kubernetes@$kubernetes"
cat ../../../go.sum >>go.sum
go mod tidy
