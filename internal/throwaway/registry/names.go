package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// maxNames is how many manifests and tags all repositories can have together. Each push writes all of
// them.
const maxNames = 20000

// names are the repositories with their manifests and tags. They are in one file, so that no name is
// ever a path.
type names struct {
	path string

	mu           sync.RWMutex
	repositories map[string]repository
}

// repository is replaced as a whole by each change.
type repository struct {
	// Manifests are the media types of the manifests.
	Manifests map[digest.Digest]string `json:"manifests"`
	Tags      map[string]digest.Digest `json:"tags"`
}

// readNames reads a file of names. If it does not exist, there are none.
func readNames(path string) (*names, error) {
	n := &names{path: path, repositories: map[string]repository{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &n.repositories); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): remove it, and push the images again", path, err)
	}
	return n, nil
}

// manifests returns the digests of all manifests.
func (n *names) manifests() []digest.Digest {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var all []digest.Digest
	for _, r := range n.repositories {
		all = slices.AppendSeq(all, maps.Keys(r.Manifests))
	}
	return all
}

// find returns the digest and the media type of the manifest that a target names.
func (n *names) find(t target) (digest.Digest, string, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	r := n.repositories[t.repository]
	sum := t.digest
	if t.tag != "" {
		sum = r.Tags[t.tag]
	}
	kind, ok := r.Manifests[sum]
	if !ok {
		return "", "", unknownManifest(t)
	}
	return sum, kind, nil
}

func unknownManifest(t target) error {
	return fault{http.StatusNotFound, codeManifestUnknown, fmt.Sprintf("%s has no manifest %s", t.repository, t.tag+t.digest.String())}
}

// tags returns the tags of a repository in order.
func (n *names) tags(name string) ([]string, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	r, ok := n.repositories[name]
	if !ok {
		return nil, fault{http.StatusNotFound, codeNameUnknown, fmt.Sprintf("there is no repository %s: push an image to it first", name)}
	}
	return slices.Sorted(maps.Keys(r.Tags)), nil
}

// add gives a repository a manifest, and the tag of the target if it has one.
func (n *names) add(t target, sum digest.Digest, mediaType string) error {
	return n.change(t.repository, func(r *repository) error {
		r.Manifests[sum] = mediaType
		if t.tag != "" {
			r.Tags[t.tag] = sum
		}
		return nil
	})
}

// remove takes a tag, or a manifest with all its tags, from a repository.
func (n *names) remove(t target) error {
	return n.change(t.repository, func(r *repository) error {
		if t.tag != "" {
			if _, ok := r.Tags[t.tag]; !ok {
				return unknownManifest(t)
			}
			delete(r.Tags, t.tag)
			return nil
		}
		if _, ok := r.Manifests[t.digest]; !ok {
			return unknownManifest(t)
		}
		r.drop(t.digest)
		return nil
	})
}

// drop takes a manifest and its tags.
func (r *repository) drop(sum digest.Digest) {
	delete(r.Manifests, sum)
	maps.DeleteFunc(r.Tags, func(_ string, other digest.Digest) bool { return other == sum })
}

// forget takes manifests from all repositories.
func (n *names) forget(lost map[digest.Digest]bool) error {
	if len(lost) == 0 {
		return nil
	}
	for name := range maps.Clone(n.repositories) {
		err := n.change(name, func(r *repository) error {
			for sum := range lost {
				r.drop(sum)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// change changes a repository and writes the file. If it fails, nothing has changed.
func (n *names) change(name string, edit func(*repository) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, existed := n.repositories[name]
	r := repository{map[digest.Digest]string{}, map[string]digest.Digest{}}
	maps.Copy(r.Manifests, old.Manifests)
	maps.Copy(r.Tags, old.Tags)
	if err := edit(&r); err != nil {
		return err
	}
	if maps.Equal(r.Manifests, old.Manifests) && maps.Equal(r.Tags, old.Tags) {
		return nil
	}
	n.repositories[name] = r
	if len(r.Manifests) == 0 {
		delete(n.repositories, name)
	}
	err := n.write(len(r.Manifests)+len(r.Tags) > len(old.Manifests)+len(old.Tags))
	if err != nil {
		delete(n.repositories, name)
		if existed {
			n.repositories[name] = old
		}
	}
	return err
}

// write writes the file. If there are more names than before, they must not be too many.
func (n *names) write(more bool) error {
	total := 0
	for _, r := range n.repositories {
		total += len(r.Manifests) + len(r.Tags)
	}
	if more && total > maxNames {
		return errTooMany
	}
	text, err := json.Marshal(n.repositories)
	if err != nil {
		return err
	}
	return datadir.WriteFile(n.path, text, 0o600)
}

var errTooMany = fault{http.StatusRequestEntityTooLarge, codeDenied, fmt.Sprintf("this registry has %d manifests and tags, and can have no more: delete some with skopeo delete docker://localhost:PORT/NAME:TAG", maxNames)}
