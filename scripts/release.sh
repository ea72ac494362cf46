#!/bin/sh
# Makes a release in a folder: kedge for every architecture, compressed, with an
# SBOM of each, install.sh, and the sums of all; signed if there is a key.
#
#   release.sh FOLDER [PRIVATE-KEY]
set -eu

cd "$(dirname "$0")/.."
out=$1
key=${2:-}
# Megabytes, of 1000000 bytes.
download_budget=60
installed_budget=300
native=$(go env GOARCH)

rm -rf "$out"
mkdir -p "$out"

# size FILES prints how large they are together, in megabytes rounded up.
size() { du -cb "$@" | awk 'END { print int(($1 + 999999) / 1000000) }'; }

# within WHAT MEGABYTES BUDGET shows a size, and fails if it is beyond its budget.
within() {
	echo "$1: $2 MB of at most $3 MB"
	[ "$2" -le "$3" ] || { echo "$1 is too large" >&2; exit 1; }
}

# The machine's own last: that is what bin/kedge is afterwards.
for architecture in $(printf '%s\n' amd64 arm64 arm | grep -vx "$native") "$native"; do
	name=kedge-$architecture
	[ "$architecture" != arm ] || name=kedge-armv7
	make GOARCH="$architecture" bin/kedge
	cp bin/kedge "$out/$name"
	go run ./scripts/sbom "$name" "$out/$name" "build/$architecture" >"$out/$name.cdx.json"
	# One thread and no name or time: the same bytes each time.
	xz -6 -T1 -k "$out/$name"
	gzip -9nk "$out/$name"
	within "$name.xz, the download" "$(size "$out/$name.xz")" "$download_budget"
	within "$name, installed and unpacked" "$(size "$out/$name" "build/$architecture/bundle")" "$installed_budget"
done

cp install.sh "$out/install.sh"
if [ -n "$key" ]; then
	public=$(openssl pkey -in "$key" -pubout | grep -v -e '^-----' | tr -d '\n')
	sed -i "s|^release_key= .*|release_key=$public|" "$out/install.sh"
fi
(cd "$out" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
[ -z "$key" ] || openssl dgst -sha256 -sign "$key" -out "$out/SHA256SUMS.sig" "$out/SHA256SUMS"
# It is in the archives.
for name in amd64 arm64 armv7; do
	rm "$out/kedge-$name"
done
ls -l "$out"
