// Package deletion is how the datastore says, for some minutes, who has asked to delete an object. The API server writes a note
// (controlplane/deletions), the backup keeps it, and the history of an object reads it.
package deletion

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Prefix begins the keys of notes. The value of a note is the name of a user.
const Prefix = "/kedge/deletions/"

// Key is the key of the note about an object. The namespace may be empty. The group of the resource is not in it.
func Key(resource, namespace, name string, uid types.UID) string {
	return Prefix + path.Join(resource, namespace, name, string(uid))
}

// Cut returns what a key says of the object: its resource, namespace and name with slashes before them, and its UID.
func Cut(key string) (object string, uid types.UID, ok bool) {
	rest, ok := strings.CutPrefix(key, Prefix)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i < 0 {
		return "", "", false
	}
	return "/" + rest[:i], types.UID(rest[i+1:]), true
}
