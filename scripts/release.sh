#!/bin/sh
# Makes a release in a folder: kedge for every architecture, compressed, an SBOM
# of each, install.sh, and the checksums of all files, signed if there is a key.
#
#   release.sh FOLDER [PRIVATE-KEY]
set -eu

cd "$(dirname "$0")/.."
out=$1
key=${2:-}
# The budgets are in megabytes of 1,000,000 bytes.
download_budget=60
installed_budget=300
native=$(go env GOARCH)

rm -rf "$out"
mkdir -p "$out"

# size FILES prints their total size in megabytes, rounded up.
size() { du -cb "$@" | awk 'END { print int(($1 + 999999) / 1000000) }'; }

# within WHAT MEGABYTES BUDGET prints a size, and fails if it exceeds its budget.
within() {
	echo "$1: $2 MB of at most $3 MB"
	[ "$2" -le "$3" ] || { echo "$1 is too large: $2 MB of at most $3 MB" >&2; exit 1; }
}

# The machine's own architecture is the last one, so that bin/kedge fits it
# afterwards.
for architecture in $(printf '%s\n' amd64 arm64 arm | grep -vx "$native") "$native"; do
	name=kedge-$architecture
	[ "$architecture" != arm ] || name=kedge-armv7
	make GOARCH="$architecture" bin/kedge
	cp bin/kedge "$out/$name"
	go run ./scripts/sbom "$name" "$out/$name" "build/$architecture" >"$out/$name.cdx.json"
	# With one thread and no name or time, xz and gzip write the same bytes each
	# time.
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
# The archives contain these files.
for name in amd64 arm64 armv7; do
	rm "$out/kedge-$name"
done
ls -l "$out"
