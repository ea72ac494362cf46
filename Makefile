# These targets build, test and run kedge. They install the Debian packages that
# they need. Go, make and git must be installed.

# -- What is built ------------------------------------------------------------

# sudo does not pass on the folder in which Go is usually installed.
export PATH := $(PATH):/usr/local/go/bin
ifeq ($(shell command -v go),)
$(error Go is missing: see https://go.dev/doc/install)
endif

GOARCH ?= $(shell go env GOARCH)
DEBARCH := $(patsubst arm,armhf,$(GOARCH))
TRIPLET_amd64 := x86_64-linux-gnu
TRIPLET_arm64 := aarch64-linux-gnu
TRIPLET_arm := arm-linux-gnueabihf
TRIPLET := $(or $(TRIPLET_$(GOARCH)),$(error kedge is not built for GOARCH=$(GOARCH)))
MUSL_CC := $(patsubst %-gnueabihf,%-musleabihf,$(TRIPLET:-gnu=-musl))-gcc
export GOARCH
COMPILER := gcc binutils pkg-config
LINKED := libc6-dev:$(DEBARCH) libseccomp-dev:$(DEBARCH) musl-dev:$(DEBARCH)
KERNEL_HEADERS := /usr/include /usr/include/$(TRIPLET)
# Only cross-compiling sets CC: with another name for gcc, all cgo code would be
# compiled again.
ifneq ($(GOARCH),$(shell GOARCH= go env GOARCH))
export CC := $(TRIPLET)-gcc
export STRIP := $(TRIPLET)-strip
export PKG_CONFIG_LIBDIR := /usr/lib/$(TRIPLET)/pkgconfig
COMPILER := gcc-$(subst x86_64,x86-64,$(TRIPLET)) binutils pkg-config
LINKED := libc6-dev-$(DEBARCH)-cross libseccomp-dev:$(DEBARCH) musl-dev:$(DEBARCH)
KERNEL_HEADERS := /usr/$(TRIPLET)/include
endif

# Every build, vet and test uses the same flags: other flags would compile all of
# Kubernetes again, which takes ten minutes. The last tag leaves out the package
# plugin, because with it the linker keeps every method of every type. nri_no_wasm
# leaves out a runtime for WebAssembly.
TAGS := netgo,osusergo,sqlite_omit_load_extension,no_btrfs,no_zfs,no_devmapper,grpcnotrace,nri_no_wasm,kustomize_disable_go_plugin_support
export GOFLAGS := -buildvcs=false -trimpath -tags=$(TAGS)
export CGO_ENABLED := 1
# SQLite uses fdatasync only if it is told that there is one. With fsync, the file system also
# writes the time of the last change with each commit, which takes another write of its journal.
export CGO_CFLAGS := -O2 -g -DHAVE_FDATASYNC=1

# The version is that of Kubernetes, with kedge's own as build metadata: a tag
# such as v1.37.2+kedge.2, or else the number of commits. The date is the
# commit's, so that the same commit gives the same executable.
KUBERNETES := $(shell sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\)$$|\1|p' go.mod)
COMMIT := $(or $(shell git rev-parse HEAD 2>/dev/null),unknown)
COMMIT_UNIX := $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
COMMIT_DATE := $(shell date -u -d @$(COMMIT_UNIX) +%Y-%m-%dT%H:%M:%SZ)
TREE_STATE := $(if $(shell git status --porcelain 2>/dev/null),dirty,clean)
VERSION := $(or \
	$(shell git describe --tags --exact-match --match '$(KUBERNETES)+kedge*' 2>/dev/null), \
	$(KUBERNETES)+kedge.$(or $(shell git rev-list --count HEAD 2>/dev/null),0))
version_words := $(subst ., ,$(KUBERNETES:v%=%))
kubernetes_version = \
	-X $(1).gitVersion=$(VERSION) \
	-X $(1).gitMajor=$(word 1,$(version_words)) \
	-X $(1).gitMinor=$(word 2,$(version_words)) \
	-X $(1).gitCommit=$(COMMIT) \
	-X $(1).gitTreeState=$(TREE_STATE) \
	-X $(1).buildDate=$(COMMIT_DATE)
OWN := github.com/kedge-dev/kedge/internal/base/version
# The nodes and crictl show this as the version of the container runtime.
CONTAINERD := $(shell sed -n 's|^.*github.com/containerd/containerd/v2 v\([0-9.]*\)$$|\1|p' go.mod)
# For arm, GNU ld (2.40) cannot be used. If .text is so large that calls need its
# stubs, the C library's resolvers lose the Thumb bit, and the program crashes at
# once.
STATIC := -static$(if $(filter arm,$(GOARCH)), -fuse-ld=gold)
# Otherwise the runtime would begin each goroutine's stack with the average size of
# stacks. Most of the 2,800 goroutines wait all the time and use little stack, so that
# would waste 1 MB. And it would take a sample for the profile of memory at every 512 KiB
# that are allocated. Each new call stack of a sample stays in memory: 1.7 MB after the start, and
# 9 MB after 40 CustomResourceDefinitions. Every 4 MiB still show what a large heap has.
# GODEBUG=memprofilerate=524288 brings the usual samples back. The go command sets no
# defaults of its own here as long as go.mod names the Go that builds.
LDFLAGS = -s -w -linkmode external -extldflags '$(STATIC)' \
	-X runtime.godebugDefault=adaptivestackstart=0,memprofilerate=4194304 \
	$(call kubernetes_version,k8s.io/component-base/version) \
	$(call kubernetes_version,k8s.io/client-go/pkg/version) \
	-X github.com/containerd/containerd/v2/version.Version=$(CONTAINERD) \
	-X $(OWN).Version=$(VERSION) -X $(OWN).Commit=$(COMMIT) -X $(OWN).commitUnix=$(COMMIT_UNIX) -X $(OWN).Plain=$(PLAIN)

.DELETE_ON_ERROR:
.PHONY: all help helpers packages FORCE

all: bin/kedge ## build bin/kedge (the default)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# go build itself knows what has changed, and links only if something has.
.PHONY: bin/kedge
bin/kedge: helpers | packages
	go build -ldflags "$(LDFLAGS)" -o $@ ./cmd/kedge

packages:
	@scripts/need.sh $(COMPILER) $(LINKED)

FORCE:

# -- The embedded helpers -----------------------------------------------------

EMBEDDED := internal/base/assets/embedded
BUILD := build/$(GOARCH)
MODULE := cmd/helpers/go.mod cmd/helpers/go.sum
# This runs in the module of the helpers. The tags of each helper are upstream's
# own.
GO_HELPER := cd cmd/helpers && GOFLAGS='-buildvcs=false -trimpath'
version_of = $$(go list -m -f '{{.Version}}' $(1))
CNI := github.com/containernetworking/plugins
PLUGINS := kedge-cni bridge host-local loopback portmap bandwidth
LAUNCHED := nft iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore
HELPERS := $(addprefix $(BUILD)/,runc containerd-shim-runc-v2 crictl cni launcher protocols.so pause debian.stamp)

# The definitions of the Gateway API come from its module.
DEFINITIONS := manifests/gateway/definitions.json.gz

helpers: $(EMBEDDED)/manifest.json $(DEFINITIONS) ## build only the helpers that are embedded

# The manifest is removed first, so that an interrupted pack is made again.
$(EMBEDDED)/manifest.json: $(HELPERS) build/goarch $(wildcard scripts/pack/*.go scripts/pauseimage/*.go scripts/ociimage/*.go)
	rm -rf $@ $(BUILD)/bundle
	mkdir -p $(BUILD)/bundle/bin $(BUILD)/bundle/images
	cp $(addprefix $(BUILD)/,runc containerd-shim-runc-v2 crictl cni launcher) $(BUILD)/bundle/bin
	for name in $(PLUGINS); do ln -s cni $(BUILD)/bundle/bin/$$name || exit; done
	for name in $(LAUNCHED); do ln -s launcher $(BUILD)/bundle/bin/$$name || exit; done
	cp -r $(BUILD)/debian/lib $(BUILD)/bundle/lib
	cp $(BUILD)/protocols.so $(BUILD)/bundle/lib
	GOARCH= CC= go run ./scripts/pauseimage $(GOARCH) $(BUILD)/pause $(BUILD)/bundle/images/pause.tar
	GOARCH= CC= go run ./scripts/pack $(BUILD)/bundle $(EMBEDDED)

$(DEFINITIONS): go.mod scripts/gatewayapi/main.go
	GOARCH= CC= go run ./scripts/gatewayapi >$@

# This file changes when make is called for another architecture than the last
# time.
build/goarch: FORCE
	@mkdir -p build
	@echo $(GOARCH) | cmp -s - $@ || echo $(GOARCH) >$@

# runc is static, and position-independent where Debian's C library supports both.
ifeq ($(GOARCH),arm)
RUNC_FLAGS := -ldflags "-s -w -linkmode external -extldflags -static"
else
RUNC_FLAGS := -buildmode=pie -ldflags "-s -w -linkmode external -extldflags -static-pie"
endif
$(BUILD)/runc: $(MODULE) Makefile | packages
	$(GO_HELPER) go build -tags seccomp,netgo,osusergo,urfave_cli_no_docs $(RUNC_FLAGS) \
		-o $(CURDIR)/$@ github.com/opencontainers/runc

# containerd speaks ttrpc to its shims, so the shim has the tag no_grpc, as in
# containerd's Makefile.
$(BUILD)/containerd-shim-runc-v2: $(MODULE) Makefile $(wildcard cmd/helpers/containerd-shim-runc-v2/*.go)
	$(GO_HELPER) CGO_ENABLED=0 go build -tags no_grpc,netgo,osusergo -ldflags "-s -w" \
		-o $(CURDIR)/$@ ./containerd-shim-runc-v2

$(BUILD)/crictl: $(MODULE) Makefile
	$(GO_HELPER) CGO_ENABLED=0 go build -tags netgo,osusergo,grpcnotrace \
		-ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=$(call version_of,sigs.k8s.io/cri-tools)" \
		-o $(CURDIR)/$@ sigs.k8s.io/cri-tools/cmd/crictl

# The go command finds upstream's plugins as packages by this overlay.
CNI_OVERLAY := $(CURDIR)/$(BUILD)/cniplugins/overlay.json
$(CNI_OVERLAY): $(MODULE) $(wildcard scripts/cniplugins/*.go)
	GOARCH= CC= go run ./scripts/cniplugins cmd/helpers $(BUILD)/cniplugins

$(BUILD)/cni: $(CNI_OVERLAY) Makefile $(wildcard cmd/helpers/cni/*.go cmd/helpers/cni/*/*.go)
	$(GO_HELPER) CGO_ENABLED=0 go build -overlay $(CNI_OVERLAY) \
		-ldflags "-s -w -X $(CNI)/pkg/utils/buildversion.BuildVersion=$(call version_of,$(CNI))" \
		-o $(CURDIR)/$@ ./cni

# With musl these two are a fiftieth of the size that they have with glibc. musl
# lacks the kernel's headers, which are the same for both.
$(BUILD)/pause $(BUILD)/launcher: $(BUILD)/%: cmd/helpers/%.c Makefile | packages
	mkdir -p $(BUILD)
	$(MUSL_CC) -static -Os -s -Wall -Wextra -Werror $(addprefix -idirafter ,$(KERNEL_HEADERS)) -o $@ $<

$(BUILD)/protocols.so: cmd/helpers/protocols.c Makefile | packages
	mkdir -p $(BUILD)
	$(CC) -shared -fPIC -nostdlib -Os -s -Wall -Wextra -Werror -o $@ $<

$(BUILD)/debian.stamp: scripts/bundle.sh scripts/aptlists.sh | packages
	scripts/bundle.sh $(DEBARCH) $(BUILD)/debian
	dpkg-query -W -f '$${Package} $${Version} $${Architecture}\n' $(LINKED) >>$(BUILD)/debian/packages
	touch $@

# -- Tests --------------------------------------------------------------------

.PHONY: test check proof lint vet unit upstream fuzz fuzz-quick integration claims e2e robustness apistorage critest soak machines machines-quick conformance conformance-quick conformance-storage conformance-gateway bench
test: check proof ## what CI runs: check, and then proof

check: vet lint unit fuzz-quick ## vet, linters, unit tests, short fuzzing

proof: integration claims machines-quick conformance-quick ## kedge with real containers: integration tests, the scenarios of SECURITY.md, a machine with systemd, some conformance tests (root)

vet: ## go vet
	go vet ./...

# staticcheck also analyses the source of Kubernetes, because it needs facts about
# it. That takes two to four minutes and 650 MB the first time, and seconds later.
# kedge sometimes has to use what upstream has deprecated (SA1019).
lint: ## gofmt, shellcheck, staticcheck
	@scripts/need.sh shellcheck
	@bad=$$(gofmt -l cmd internal scripts $(wildcard manifests tests)); [ -z "$$bad" ] || { echo "run gofmt -w on these files: $$bad"; exit 1; }
	shellcheck install.sh scripts/*.sh tests/e2e/install/testdata/* tests/machines/*.sh tests/bench/*.sh tests/conformance/*.sh tests/conformance/suite/*.sh tests/robustness/suite/*.sh .ci/run
	$(GO_HELPER) GOARCH= CC= go build -o $(CURDIR)/build/staticcheck honnef.co/go/tools/cmd/staticcheck
	build/staticcheck -checks inherit,-SA1019 ./...

# go test, and at the end the tests that failed or were skipped.
GOTESTSUM := build/gotestsum
$(GOTESTSUM): cmd/helpers/go.mod
	$(GO_HELPER) GOARCH= CC= go build -o $(CURDIR)/$@ gotest.tools/gotestsum
GOTEST := $(GOTESTSUM) --format standard-quiet --
GOTEST_V := $(GOTESTSUM) --format standard-verbose -- -count=1

# The race detector compiles every package again, which would take too long for
# Kubernetes.
unit: $(GOTESTSUM) $(DEFINITIONS) $(CNI_OVERLAY) | packages ## unit tests, with the race detector where Kubernetes is not imported
	@scripts/need.sh nftables iptables iproute2 e2fsprogs xfsprogs btrfs-progs
	packages=$$(scripts/packages.sh light) && $(GOTEST) -race $$packages
	packages=$$(scripts/packages.sh heavy) && $(GOTEST) $$packages
	$(GO_HELPER) GOARCH= CC= CGO_ENABLED=0 go test -tags no_grpc,netgo,osusergo ./containerd-shim-runc-v2
	$(GO_HELPER) GOARCH= CC= CGO_ENABLED=0 go test -vet=off -overlay $(CNI_OVERLAY) ./cni/chain # vet finds no packages of an overlay

# Fails as long as something has changed. The older sources come from the module cache,
# or are downloaded into it.
upstream: ## show what has changed of what kedge follows or relies on upstream; UPDATE=1 takes it over
	go test -count=1 -run '^TestTree$$' ./internal/upstream $(if $(UPDATE),-update,-diff)

fuzz: | packages ## run each fuzz target for FUZZTIME=1h
	scripts/fuzz.sh thorough $(or $(FUZZTIME),1h)

# This takes 2.5 minutes on 2 busy cores, half of it for compiling. Only kedge's own
# packages are instrumented, because the 1,000 packages below them take more than ten
# minutes.
fuzz-quick: | packages ## run each fuzz target for FUZZTIME=2s
	scripts/fuzz.sh quick $(or $(FUZZTIME),2s)

integration: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## tests/integration: bin/kedge with real containers (root)
	@scripts/need.sh nftables
	KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -timeout 40m -parallel 4 ./tests/harness/... ./tests/integration/...

# Tests upgrade from these commits: the last one with Kubernetes v1.36, and the last one
# before nodes had registrations.
OLDER := d4019e5
OLDEST := 0dde13c
older = $(BUILD)/older/$(1)/kedge
# Tests in which kedge upgrades itself need a later version of the same commit.
NEXT := $(BUILD)/next/kedge

e2e: bin/kedge $(NEXT) $(BUILD)/busybox $(BUILD)/prometheus $(BUILD)/versitygw $(BUILD)/axe.min.js $(GOTESTSUM) $(call older,$(OLDER)) $(call older,$(OLDEST)) ## tests/e2e: one folder per scenario (root)
	@scripts/need.sh nftables
	ONLY=SQLite KEDGE_BINARY=$(CURDIR)/bin/kedge KEDGE_NEXT=$(CURDIR)/$(NEXT) \
		KEDGE_OLDER=$(CURDIR)/$(call older,$(OLDER)) KEDGE_OLDEST=$(CURDIR)/$(call older,$(OLDEST)) \
		$(GOTEST_V) -p 2 -parallel 2 -timeout 60m ./tests/e2e/... ./tests/robustness ./tests/apistorage ./tests/cri

robustness: bin/kedge $(GOTESTSUM) ## etcd's traffic and validators on every datastore, with faults: RUNS=10, SEED=, ONLY=SQLite (root)
	@scripts/need.sh nftables
	RUNS=$(or $(RUNS),10) SEED=$(SEED) KEDGE_BINARY=$(CURDIR)/bin/kedge \
		$(GOTEST_V) -parallel 4 -timeout 48h $(if $(ONLY),-run 'TestRobustness/$(ONLY)$$') ./tests/robustness

apistorage: bin/kedge $(GOTESTSUM) ## upstream's tests of the API server's storage on every datastore: ONLY=SQLite (root)
	ONLY=$(ONLY) KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -timeout 2h ./tests/apistorage

critest: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## the validation suite of the CRI on kedge's containerd: FOCUS= (root)
	@scripts/need.sh nftables
	FOCUS='$(FOCUS)' KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -timeout 30m ./tests/cri

soak: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## a busy week in an hour, with faults: HOURS=1 SEED= (root)
	@scripts/need.sh nftables
	HOURS=$(or $(HOURS),1) SEED=$(SEED) KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -timeout 48h ./tests/soak

# TestKill9 kills only five times here.
claims: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## those of tests/e2e that SECURITY.md names, and those behind "nothing is lost" (root)
	@scripts/need.sh nftables
	KILL9=5 KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -p 2 -parallel 2 -timeout 60m $$(scripts/claims.sh)

# The tests make the files of the machines that they run, with the rules below.
MACHINES_TEST := KEDGE_BINARY=$(CURDIR)/bin/kedge $(GOTEST_V) -timeout 6h ./tests/machines
machines: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## tests/machines: whole machines with systemd; RUN= is the name of one, SUITES= are tests to run there (root)
	KEDGE_MACHINE='$(RUN)' KEDGE_SUITES='$(SUITES)' FOCUS='$(FOCUS)' SKIP='$(SKIP)' LABELS='$(LABELS)' PROCS='$(PROCS)' AGENTS='$(AGENTS)' $(MACHINES_TEST) $(if $(RUN),,-short)

machines-quick: bin/kedge $(BUILD)/busybox $(GOTESTSUM) ## the short scenarios of tests/machines in a container with systemd (root)
	KEDGE_MACHINE=nspawn $(MACHINES_TEST) -short

MACHINES := build/machines
$(MACHINES)/linux-%: scripts/userkernel.sh tests/machines/kernel.config scripts/aptlists.sh
	@scripts/need.sh gcc libc6-dev flex bison bc libelf-dev xz-utils mmdebstrap
	scripts/userkernel.sh $* tests/machines/kernel.config $@

# kedge for machines of another architecture. Afterwards bin/kedge fits this machine again.
$(MACHINES)/kedge-%: bin/kedge
	mkdir -p $(MACHINES)
	$(MAKE) GOARCH=$* bin/kedge build/$*/busybox
	cp bin/kedge $@.new
	$(MAKE) bin/kedge
	mv $@.new $@
	touch $@ # it is newer than bin/kedge

# The words in the name of a system tell what it has: see scripts/machineimage.sh.
MACHINE_FILES := $(shell find tests/machines/image -type f)
$(MACHINES)/%.img: scripts/machineimage.sh scripts/foreign.sh $(MACHINE_FILES)
	@scripts/need.sh mmdebstrap e2fsprogs
	scripts/machineimage.sh $* tests/machines/image $(MACHINES)/$*

$(call older,%):
	scripts/older.sh $* $@

.PHONY: $(NEXT)
$(NEXT): private VERSION := $(VERSION)1
$(NEXT): bin/kedge
	go build -ldflags "$(LDFLAGS)" -o $@ ./cmd/kedge

$(BUILD)/busybox: scripts/debianprogram.sh scripts/aptlists.sh
	scripts/debianprogram.sh busybox-static:$(DEBARCH) busybox $@

$(BUILD)/prometheus: scripts/debianprogram.sh scripts/aptlists.sh
	scripts/debianprogram.sh prometheus:$(DEBARCH) prometheus $@

# A server of S3, for backups.
$(BUILD)/versitygw:
	GOFLAGS= GOARCH= CGO_ENABLED=0 GOBIN=$(CURDIR)/$(BUILD) go install -trimpath -ldflags '-s -w' github.com/versity/versitygw/cmd/versitygw@v1.8.0

# It finds what keeps people from using a page.
AXE := 4.14.1
$(BUILD)/axe.min.js:
	@command -v npm >/dev/null || scripts/need.sh npm
	mkdir -p $(BUILD)/axe
	cd $(BUILD)/axe && npm pack --silent axe-core@$(AXE) && tar -xzf axe-core-$(AXE).tgz
	mv $(BUILD)/axe/package/axe.min.js $@

CONFORMANCE := build/conformance
CONFORMANCE_TEST := KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true KEDGE_BINARY=$(CURDIR)/bin/kedge go test -count=1 -timeout 6h -v ./tests/conformance

conformance: bin/kedge $(CONFORMANCE)/images/images.tar ## upstream's conformance tests: FOCUS=, SKIP=, PROCS=4, AGENTS=1; PLAIN=1 without internal/controlplane/lean (root)
	FOCUS='$(FOCUS)' SKIP='$(SKIP)' LABELS='$(LABELS)' PROCS='$(PROCS)' AGENTS='$(AGENTS)' $(CONFORMANCE_TEST)

conformance-quick: bin/kedge $(CONFORMANCE)/images/images.tar ## a selection of the conformance tests that takes minutes (root)
	LIST=quick.txt PROCS='$(PROCS)' $(CONFORMANCE_TEST)

# These are those of upstream's tests for storage drivers that fit kedge's driver.
# Disruptive tests are left out, because they stop the kubelet over SSH. One test
# is left out because it needs images of other projects.
conformance-storage: bin/kedge $(CONFORMANCE)/images/images.tar ## upstream's storage driver tests, for kedge's driver (root)
	@scripts/need.sh e2fsprogs
	LABELS='!Disruptive && Feature: isSubsetOf {VolumeSnapshotDataSource, VolumeSourceXFS}' \
	SKIP='Inline-volume|Pre-provisioned|CSI Ephemeral|ntfs|xfs|any volume data source' \
	FOCUS='$(or $(FOCUS),Driver: local.kedge.dev)' PROCS='$(PROCS)' $(CONFORMANCE_TEST)

conformance-gateway: bin/kedge ## the conformance suite of the Gateway API: RUN= is the name of one test (root)
	go test -c -ldflags '-s -w' -o build/gateway/suite.test ./tests/gateway/suite
	KEDGE_BINARY=$(CURDIR)/bin/kedge RUN='$(RUN)' go test -count=1 -timeout 2h -v ./tests/gateway

$(CONFORMANCE)/images/images.tar: tests/conformance/images.sh scripts/aptlists.sh $(CONFORMANCE)/programs.stamp $(BUILD)/pause
	tests/conformance/images.sh $(BUILD)/pause

$(CONFORMANCE)/programs.stamp: tests/conformance/build.sh $(wildcard tests/conformance/suite/*/go.* tests/conformance/suite/go.* \
		tests/conformance/coredns/*.go tests/conformance/imgtool/*.go tests/conformance/shell/*.go) | packages
	tests/conformance/build.sh
	touch $@

bench: bin/kedge $(BUILD)/busybox ## measure this machine, with ratios against upstream (root)
	@scripts/need.sh e2fsprogs fio nghttp2-client nginx-light xz-utils
	tests/bench/build.sh
	KEDGE_BINARY=$(CURDIR)/bin/kedge go test -count=1 -timeout 8h -v -run '^Test(Bench|PodStart|Parts|Backup|VolumeBackup|Network|Policies|Gateway|Nodes|Datastores|Storage|Lived|ThrowAway)$$' ./tests/bench

# -- Releasing ----------------------------------------------------------------

RELEASE := build/release
.PHONY: release reproducible
release: ## build/release: kedge for amd64, arm64 and armv7; RELEASE_KEY= is a key (PEM) to sign with
	@scripts/need.sh xz-utils openssl qemu-user-static
	scripts/release.sh $(RELEASE) $(RELEASE_KEY)
	KEDGE_RELEASE=$(CURDIR)/$(RELEASE) go test -count=1 -v ./tests/release

reproducible: ## build the commit in two folders, and compare
	scripts/reproducible.sh

# -- Running ------------------------------------------------------------------

.PHONY: up down clean
up: bin/kedge ## start a server in the background and wait until it is ready (root)
	@scripts/up.sh

down: ## stop what up started, its pods too, and remove what up created (root)
	@scripts/down.sh

clean: ## remove what was built here; Go's caches stay
	rm -rf bin build
	find $(EMBEDDED) -mindepth 1 ! -name .gitkeep -delete
	rm -f $(DEFINITIONS)
