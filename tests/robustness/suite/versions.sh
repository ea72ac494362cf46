#!/bin/sh
# Gives the module of the judge the versions of kedge's own go.mod, after those changed.
# Etcd's tests have the version of etcd's server. Without this script the judge still
# builds, but what was compiled for kedge is compiled again for it.
set -eu

cd "$(dirname "$0")"
own=../../../go.mod
etcd=$(sed -n 's|^.*go.etcd.io/etcd/server/v3 \(v[^ ]*\)$|\1|p' $own | head -n 1)
awk 'FNR == NR { if (NF > 1) version[$1] = $2; next }
	/^\t/ && $1 in version { print "-require=" $1 "@" version[$1] }' $own go.mod | xargs go mod edit
go mod edit -require="go.etcd.io/etcd/tests/v3@$etcd"
go mod tidy
