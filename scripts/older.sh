#!/bin/sh
# Builds kedge of an older commit, for tests that upgrade it: scripts/older.sh COMMIT
# FILE. Packages in the Go build cache are not compiled again.
set -eu

commit=$1 file=$2
cd "$(dirname "$0")/.."
source=$PWD/build/older-source
git rev-parse --quiet --verify "$commit^{commit}" >/dev/null || {
	echo "older.sh: this clone has no commit $commit: fetch the whole history with: git fetch --unshallow" >&2
	exit 1
}
mkdir -p "$(dirname "$file")"
rm -rf "$source"
git worktree prune
trap 'git worktree remove --force "$source" || true' EXIT
git worktree add --quiet --detach "$source" "$commit"
make -C "$source" bin/kedge
cp "$source/bin/kedge" "$file"
