// Package manifests holds the Kubernetes objects that every cluster of kedge
// begins with. The addons package applies them, and fills in what depends on the
// configuration.
package manifests

import "embed"

// Files are the manifests, each with one or more YAML documents. Those in the
// folder storage are for clusters with local storage.
//
//go:embed *.yaml storage/*.yaml
var Files embed.FS
