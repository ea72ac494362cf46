package openapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	restful "github.com/emicklei/go-restful/v3"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

const v3Path = "/openapi/v3"

// groupVersions serves OpenAPI v3 documents, one for each API group and version,
// as upstream does (apiserver/pkg/server/routes/openapi.go, InstallV3).
//
// Upstream hashes the text of a document. For that the text would have to be
// made, because the aggregator asks for all hashes once a second from the start.
// Here the hash is of everything that the text is made from. Clients use a hash
// only to find out whether they have the document already.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/routes/openapi.go OpenAPI.InstallV3
type groupVersions struct {
	mu        sync.Mutex
	versions  map[string]groupVersion
	discovery []byte

	// rendering is held while a document is made, so that each is made only once.
	rendering sync.Mutex
}

// groupVersion is the document of one API group and version.
type groupVersion struct {
	hash     string
	render   func() ([]byte, error)
	document *kept[document]
}

// set replaces all versions. It keeps documents whose hash has not changed.
func (g *groupVersions) set(versions map[string]groupVersion) error {
	discovery := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for name, version := range versions {
		discovery.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: version.url(name)}
	}
	encoded, err := json.Marshal(discovery)
	if err != nil {
		return fmt.Errorf("encode OpenAPI discovery: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, old := range g.versions {
		if version := versions[name]; version.hash == old.hash {
			version.document = old.document
			versions[name] = version
		} else {
			old.document.drop()
		}
	}
	g.versions, g.discovery = versions, encoded
	return nil
}

func (g *groupVersions) index() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.discovery
}

func (g *groupVersions) find(name string) (version groupVersion, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	version, found = g.versions[name]
	return version, found
}

// document returns the document of the named version. It renders the document if
// there was no request for some minutes.
func (g *groupVersions) document(name string, version groupVersion) (*document, error) {
	g.rendering.Lock()
	defer g.rendering.Unlock()
	if document := version.document.get(); document != nil {
		return document, nil
	}
	text, err := version.render()
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI document of %s: %w", name, err)
	}
	document, err := newDocument(version.hash, text, handler3.ToV3ProtoBinary)
	if err != nil {
		return nil, err
	}
	version.document.put(document)
	return document, nil
}

// builtIn returns the versions of the servers' own APIs. origin goes into all
// hashes. If several services have the same path, the last one counts.
func builtIn(servers []*server, origin []byte) map[string]groupVersion {
	versions := map[string]groupVersion{}
	for _, server := range servers {
		for _, service := range server.services {
			versions[strings.TrimPrefix(service.RootPath(), "/")] = groupVersion{
				hash:     hash(origin, service),
				render:   func() ([]byte, error) { return server.renderV3(service) },
				document: &kept[document]{},
			}
		}
	}
	return versions
}

// hash returns a hash that is equal on two servers if their documents are.
func hash(origin []byte, service *restful.WebService) string {
	sum := sha256.New()
	sum.Write(origin)
	io.WriteString(sum, service.RootPath())
	var lines []string
	for _, route := range service.Routes() {
		lines = append(lines, fmt.Sprintln(route.Method, route.Path, route.Operation, route.Consumes, route.Produces))
	}
	slices.Sort(lines)
	for _, line := range lines {
		io.WriteString(sum, line)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// origin returns a hash of what all documents depend on: the libraries in this
// executable, from which types and their descriptions come, the features that change
// them, and the version in the title.
func origin(config *common.OpenAPIV3Config, gates featuregate.MutableFeatureGate) []byte {
	origin := sha256.New()
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			fmt.Fprintln(origin, module.Path, module.Version, module.Sum)
			if module.Replace != nil {
				fmt.Fprintln(origin, module.Replace.Path, module.Replace.Version, module.Replace.Sum)
			}
		}
	}
	var features []string
	for feature := range gates.GetAll() {
		features = append(features, fmt.Sprintln(feature, gates.Enabled(feature)))
	}
	slices.Sort(features)
	fmt.Fprintln(origin, features, config.Info.Title, config.Info.Version)
	return origin.Sum(nil)
}
