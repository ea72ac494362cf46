#!/bin/sh
# Builds upstream's conformance tests, and the programs of the images they use,
# into build/conformance/bin, with the flags in the environment: make calls it.
set -eu

cd "$(dirname "$0")/../.."
bin=$PWD/build/conformance/bin
suite=tests/conformance/suite
mkdir -p "$bin"

kubernetes=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\)$|\1|p' go.mod)
if ! grep -q "k8s.io/kubernetes $kubernetes " $suite/go.mod; then
	echo "$suite/go.mod is not for Kubernetes $kubernetes: run $suite/versions.sh" >&2
	exit 1
fi
minor=${kubernetes#v1.}
minor=${minor%%.*}
version=k8s.io/component-base/version
version="-X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=$minor"

build() {
	echo "go build $2"
	go -C "${3:-$suite}" build -ldflags "-s -w" -o "$bin/$1" "$2"
}

build imgtool ./tests/conformance/imgtool .
build shell ./tests/conformance/shell .
build coredns ./tests/conformance/coredns .
build ginkgo github.com/onsi/ginkgo/v2/ginkgo
echo "go test -c k8s.io/kubernetes/test/e2e"
go -C $suite test -c -vet=off -ldflags "-s -w $version" -o "$bin/e2e.test" k8s.io/kubernetes/test/e2e

agnhost=$(go -C $suite list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)
echo "go build k8s.io/kubernetes/test/images/agnhost"
go -C $suite build -ldflags "-s -w -X main.Version=$(cat "$agnhost/VERSION")" \
	-o "$bin/agnhost" k8s.io/kubernetes/test/images/agnhost
build nnp k8s.io/kubernetes/test/images/nonewprivs
build consumer k8s.io/kubernetes/test/images/resource-consumer
build consume-cpu k8s.io/kubernetes/test/images/resource-consumer/consume-cpu
build regression-issue-74839 k8s.io/kubernetes/test/images/regression-issue-74839
build etcd go.etcd.io/etcd/server/v3
build sample-apiserver k8s.io/sample-apiserver $suite/sample-apiserver
