// Package manifests holds the Kubernetes objects that every cluster of kedge
// begins with. The addons package applies them, and fills in what depends on the
// configuration.
package manifests

import "embed"

// Files are the manifests, each with one or more YAML documents. A folder has those
// of the part of the cluster whose name it has (config.Part). The folder gateway also has
// the file of GatewayDefinitions.
//
//go:embed *.yaml */*.yaml gateway
var Files embed.FS
