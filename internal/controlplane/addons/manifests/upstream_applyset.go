// Follows k8s.io/kubectl v0.37.2, pkg/cmd/apply/applyset.go.

package manifests

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// setID returns the ID of the ApplySet whose ConfigMap has a name, as kubectl's
// ApplySet.ID does.
//
//upstream:follows k8s.io/kubectl/pkg/cmd/apply/applyset.go ApplySet.ID
func setID(name string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{name, namespace, "ConfigMap", ""}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}
