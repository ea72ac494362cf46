#!/bin/sh
# Moves kedge to another version of Kubernetes: scripts/bump.sh v1.37.2, or a release
# candidate such as v1.38.0-rc.0. It sets every pin and the places that name the
# version, tidies, shows what has changed upstream, and builds. CONTRIBUTING.md says
# what is left to do ("Follow upstream"). Until the change is committed it may run any
# number of times: the older version is that of the last commit.
set -eu

new=${1:-}
if [ $# != 1 ] || ! echo "$new" | grep -Eqx 'v1\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?'; then
	echo "usage: scripts/bump.sh VERSION, such as v1.37.2 or v1.38.0-rc.0" >&2
	exit 2
fi
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin
export PATH
mkdir -p build
work=$PWD/build/bump
rm -rf "$work"
mkdir "$work"

# A step says what it does. If one fails, the script ends and says how to go on.
doing=
trap '[ -z "$doing" ] || echo "bump.sh: this failed: $doing. Correct the cause, then go on with: scripts/bump.sh $new" >&2' EXIT
step() {
	doing=$*
	echo "== $*"
}

step "find Kubernetes $new"
old=$(git show HEAD:go.mod | sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\)$|\1|p')
# Kubernetes' other modules have the same version with a 0 in place of the 1.
staging=v0.${new#v1.}
minor() { echo "$1" | cut -d . -f 2; }
# folder prints where the source of a version of Kubernetes is.
folder() {
	go mod download -json "k8s.io/kubernetes@$1" >"$work/module" || {
		sed -n 's|^.*"Error": "\(.*\)".*$|\1|p' "$work/module" >&2
		return 1
	}
	sed -n 's|^.*"Dir": "\(.*\)".*$|\1|p' "$work/module"
}
older=$(folder "$old")
newer=$(folder "$new")
sed -n 's|^.*\(k8s.io/[^ ]*\) => ./staging/.*$|\1|p' "$newer/go.mod" | grep -v '^k8s.io/sample-c' | sort >"$work/staging"
[ -s "$work/staging" ]
echo "from $old to $new, with $(wc -l <"$work/staging") modules at $staging"

step "set the versions in go.mod, cmd/helpers/go.mod and tests/envtest/go.mod"
# What is replaced stands together. A module that is new in this version gets a line too.
for file in go.mod cmd/helpers/go.mod tests/envtest/go.mod; do
	awk -v new="$new" -v staging="$staging" '
		FNR == NR { staged[$1]; replaced = replaced "\t" $1 " => " $1 " " staging "\n"; next }
		$2 == "=>" && $1 ~ /^k8s\.io\// { printf "%s", replaced; replaced = ""; next }
		$1 == "k8s.io/kubernetes" { $0 = "\t" $1 " " new }
		$1 in staged && $2 ~ /^v0\.[1-9]/ { sub(/v0\.[^ ]*/, staging) }
		{ print }' "$work/staging" $file >"$work/go.mod"
	cat "$work/go.mod" >$file
done

step "write $new where documents and code name the version"
# Examples are +kedge.1 and +kedge.2. What has another number is history.
pattern=$(echo "$old" | sed 's/[.]/\\./g')
for file in README.md install.sh Makefile docs/install.md docs/upgrades.md internal/adopt/objects.go internal/base/version/version.go \
	tests/bench/hollow.go tests/conformance/README.md; do
	sed -e "s/$pattern\(+kedge\.[12]\)\([^0-9]\|$\)/$new\1\2/g" \
		-e "s/$pattern\(+kedge\.dev\|[^-+0-9]\|$\)/$new\1/g" \
		-e "s/\(v1\.\)$(minor "$old")\([^0-9.]\|\.[^0-9]\|\.\?$\)/\1$(minor "$new")\2/g" \
		-e "s/($(minor "$old") in $new)/($(minor "$new") in $new)/" -i $file
done
git --no-pager diff --stat

step "go mod tidy"
go mod tidy

step "go mod tidy -e in cmd/helpers"
# Packages of the CNI plugins are made by the Makefile, so they are not found now.
(cd cmd/helpers && go mod tidy -e 2>"$work/tidy") || { cat "$work/tidy"; exit 1; }

step "go mod tidy in tests/envtest"
(cd tests/envtest && go mod tidy)

step "tests/conformance/suite/versions.sh"
tests/conformance/suite/versions.sh

step "tests/robustness/suite/versions.sh"
tests/robustness/suite/versions.sh

step "make upstream: what kedge follows or relies on"
# It fails if something has changed.
make upstream >build/upstream.log 2>&1 || grep -q '^WHY ' build/upstream.log || { cat build/upstream.log; exit 1; }
sed -n '/^WHY /,/^--- /{/^--- /!p}' build/upstream.log
echo "the differences are in build/upstream.log"

step "compare the conformance tests of $old and $new"
# Names are without the labels at their ends.
tests() {
	awk '/^  codename: / { sub(/^  codename: /, ""); name = $0; more = 1; next }
		more && /^    / { sub(/^ +/, ""); name = name " " $0; next }
		more { print name; more = 0 }
		END { if (more) print name }' "$1/test/conformance/testdata/conformance.yaml" |
		sed "s/^['\"]//; s/''/'/g; s/ \[Conformance\].*$//" | sort
}
tests "$older" >"$work/older"
tests "$newer" >"$work/newer"
echo "$(wc -l <"$work/older") tests, now $(wc -l <"$work/newer"):"
sed -i "s/[0-9]* of them in v1/$(wc -l <"$work/newer") of them in v1/" tests/conformance/README.md
diff "$work/older" "$work/newer" | grep '^[<>]' || true
grep -v '^#' tests/conformance/quick.txt | sort | comm -23 - "$work/newer" | sed 's/^/gone from quick.txt: /'

step "make"
make

doing=
echo "== kedge is built for Kubernetes $new: go on as CONTRIBUTING.md says (\"Follow upstream\")"
