#!/bin/sh
# Builds the committed kedge once more, in another folder, and compares: the same
# commit has to give the same bytes.
set -eu

cd "$(dirname "$0")/.."
[ -z "$(git status --porcelain)" ] || { echo "commit first: a build from changed files says so of itself" >&2; exit 1; }
make bin/kedge
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone -q . "$folder/elsewhere"
make -C "$folder/elsewhere" bin/kedge
cmp bin/kedge "$folder/elsewhere/bin/kedge"
echo "both are $(sha256sum <bin/kedge | cut -d ' ' -f 1)"
