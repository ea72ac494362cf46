#!/bin/sh
# Builds the baseline's executables into build/bench/bin, from the modules of
# go.mod and with the flags in the environment, and downloads the modules of
# custom/modules: make bench calls it.
set -eu

cd "$(dirname "$0")/../.."
out=build/bench
mkdir -p $out/bin $out/_flanneld $out/_kopia

# Whole upstream programs import more than kedge does. What they need besides
# is recorded in go.sum.extra, and go.mod stays as it is.
cp go.mod $out/go.mod
cat go.sum tests/bench/baseline/go.sum.extra >$out/go.sum

kubernetes=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\)$|\1|p' go.mod)
minor=${kubernetes#v1.}
minor=${minor%%.*}
version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=$minor"

build() {
	go build -mod=mod -modfile=$out/go.mod -ldflags "$flags" -o "$out/bin/$1" "$2"
}

build kubeadm k8s.io/kubernetes/cmd/kubeadm
build etcd go.etcd.io/etcd/server/v3
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
build kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
build kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
build containerd github.com/containerd/containerd/v2/cmd/containerd
build kubelet k8s.io/kubernetes/cmd/kubelet
build kube-proxy k8s.io/kubernetes/cmd/kube-proxy
build kubectl k8s.io/kubernetes/cmd/kubectl
build coredns ./tests/bench/coredns

# TestVolumeBackup compares kedge with kopia, which is no part of go.mod. It is built in a module that requires it, because
# `go install` with a version needs the list of all versions, which some module proxies refuse.
printf 'module kopia\n\nrequire github.com/kopia/kopia v0.23.1\n' >$out/_kopia/go.mod
CGO_ENABLED=0 go build -C $out/_kopia -mod=mod -tags nohtmlui -ldflags '-s -w' -o .. github.com/kopia/kopia

# flanneld without the back end for Tencent's cloud, whose module the Go module
# proxies do not all have.
flannel=$(go list -m -f '{{.Dir}}' github.com/flannel-io/flannel)
grep -v /tencentvpc\" "$flannel/main.go" >$out/_flanneld/main.go
build flanneld $out/_flanneld/main.go

# TestLived reads CustomResourceDefinitions from these modules. Nothing imports
# them.
while read -r _ module _; do
	go mod download -modfile=$out/go.mod "$module"
done <tests/bench/custom/modules
