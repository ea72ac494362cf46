package openapi

import (
	"bytes"
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

// groupVersions serves the OpenAPI v3 documents of the servers' own APIs, as
// upstream does (apiserver/pkg/server/routes/openapi.go, InstallV3).
//
// Upstream hashes the text of a document. For that the text would have to be
// made, because the aggregator asks for all hashes once a second from the start.
// Here the hash is of everything that the text is made from. Clients use a hash
// only to find out whether they have the document already.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/routes/openapi.go OpenAPI.InstallV3
type groupVersions struct {
	renderers map[string]func() ([]byte, error)
	hashes    map[string]string
	discovery []byte

	mu        sync.Mutex
	documents map[string]*document
}

// newGroupVersions returns the documents of servers. origin goes into all hashes.
// If several services have the same path, the last one counts.
func newGroupVersions(servers []*server, origin []byte) (*groupVersions, error) {
	g := &groupVersions{
		renderers: map[string]func() ([]byte, error){},
		hashes:    map[string]string{},
		documents: map[string]*document{},
	}
	discovery := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, server := range servers {
		for _, service := range server.services {
			name := strings.TrimPrefix(service.RootPath(), "/")
			g.renderers[name] = func() ([]byte, error) { return server.renderV3(service) }
			g.hashes[name] = hash(origin, service)
			discovery.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: g.url(name)}
		}
	}
	var err error
	if g.discovery, err = json.Marshal(discovery); err != nil {
		return nil, fmt.Errorf("encode OpenAPI discovery: %w", err)
	}
	return g, nil
}

// document returns the named document. It renders the document at the first
// request.
func (g *groupVersions) document(name string) (*document, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if document := g.documents[name]; document != nil {
		return document, nil
	}
	text, err := g.renderers[name]()
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI document of %s: %w", name, err)
	}
	document, err := newDocument(g.hashes[name], text, handler3.ToV3ProtoBinary)
	if err != nil {
		return nil, err
	}
	g.documents[name] = document
	return document, nil
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

// origin returns what all documents depend on: the libraries in this executable,
// from which types and their descriptions come, the features that change them,
// and the version in the title.
func origin(config *common.OpenAPIV3Config, gates featuregate.MutableFeatureGate) []byte {
	var origin bytes.Buffer
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			fmt.Fprintln(&origin, module.Path, module.Version, module.Sum)
			if module.Replace != nil {
				fmt.Fprintln(&origin, module.Replace.Path, module.Replace.Version, module.Replace.Sum)
			}
		}
	}
	var features []string
	for feature := range gates.GetAll() {
		features = append(features, fmt.Sprintln(feature, gates.Enabled(feature)))
	}
	slices.Sort(features)
	fmt.Fprintln(&origin, features, config.Info.Title, config.Info.Version)
	return origin.Bytes()
}
