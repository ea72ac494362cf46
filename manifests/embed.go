// Package manifests holds the Kubernetes objects that every cluster of kedge
// begins with. The addons package applies them; what depends on the
// configuration it fills in there.
package manifests

import "embed"

// Files are the manifests, each with one or more YAML documents. Those of the
// folder storage are for clusters with local storage.
//
//go:embed *.yaml storage/*.yaml
var Files embed.FS
