#!/bin/sh
# Builds the committed kedge again in another folder and compares the two: the
# same commit must give the same bytes.
set -eu

cd "$(dirname "$0")/.."
[ -z "$(git status --porcelain)" ] || { echo "commit your changes first: a build from changed files records that it is one" >&2; exit 1; }
make bin/kedge
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone -q . "$folder/elsewhere"
make -C "$folder/elsewhere" bin/kedge
cmp bin/kedge "$folder/elsewhere/bin/kedge"
echo "both builds are the same: $(sha256sum <bin/kedge | cut -d ' ' -f 1)"
