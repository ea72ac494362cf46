// Package registries decides where a node gets its images from. It reads the user's registries.yaml,
// in the format that k3s users know, and makes resolvers for containerd from it. The agent package
// creates it and gives it to containerd.
package registries

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"go.yaml.in/yaml/v3"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// anyRegistry is the name of the entry for all registries that have no entry of their own.
const anyRegistry = "*"

// settings is a registries.yaml. The zero value stands for a missing file.
type settings struct {
	Mirrors map[string]mirror         `yaml:"mirrors"`
	Configs map[string]endpointConfig `yaml:"configs"`
}

// mirror says where to look for the images of a registry before asking the registry itself.
type mirror struct {
	Endpoints []endpoint `yaml:"endpoint"`
	Rewrites  rewrites   `yaml:"rewrite"`
}

// endpointConfig is how to talk to a registry or a mirror, which is named by HOST[:PORT].
type endpointConfig struct {
	Auth *credential `yaml:"auth"`
	TLS  *tlsConfig  `yaml:"tls"`
}

// endpoint is the address of a mirror.
type endpoint struct {
	scheme, host string
	// path is the URL path before the repository's name, such as /v2.
	path string
}

// rewrites are in the order of the file. Only the first one that changes a name is applied.
type rewrites []rewrite

type rewrite struct {
	pattern *regexp.Regexp
	with    string
}

// credential is a user and a password, or an identity token without a user.
type credential struct{ user, secret string }

type tlsConfig struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// read returns the settings in a file, and its text. If the file does not exist, both are empty.
func read(path string) (*settings, []byte, error) {
	text, err := datadir.ReadText(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &settings{}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read registries: %w", err)
	}
	s, err := parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("read registries: %s: %w", path, err)
	}
	return s, text, nil
}

// parse returns the settings in a text, or an error with every fault and its line. It also reads
// the files that the text names, which must be valid.
func parse(text []byte) (*settings, error) {
	var s settings
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(&s)
	var faults *yaml.TypeError
	if errors.As(err, &faults) {
		for i, fault := range faults.Errors {
			faults.Errors[i], _, _ = strings.Cut(fault, " in type ") // the name of the Go type
		}
		return nil, errors.New(strings.Join(faults.Errors, "; "))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &s, checkNames(text)
}

// checkNames returns an error for keys that cannot be names of registries.
func checkNames(text []byte) error {
	var sections struct {
		Mirrors yaml.Node `yaml:"mirrors"`
		Configs yaml.Node `yaml:"configs"`
	}
	if err := yaml.Unmarshal(text, &sections); err != nil {
		return err
	}
	var faults []string
	for _, section := range []yaml.Node{sections.Mirrors, sections.Configs} {
		for i := 0; i < len(section.Content); i += 2 {
			if key := section.Content[i]; strings.ContainsAny(key.Value, "/ ") {
				faults = append(faults, fmt.Sprintf("line %d: %q is not a registry's HOST or HOST:PORT", key.Line, key.Value))
			}
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

// fault is an error with its line. The decoder reports all faults together.
func fault(node *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", node.Line) + fmt.Sprintf(format, args...)}}
}

// UnmarshalYAML completes an address as k3s does: the default scheme is https, or http if the
// address is on this host, and the default path is /v2.
func (e *endpoint) UnmarshalYAML(node *yaml.Node) error {
	text := node.Value
	if !strings.Contains(text, "://") {
		text = "//" + text
	}
	if strings.Contains(text, "@") {
		// The text has a password, which must not get into the log.
		return fault(node, "endpoint has a user or a password in it: write these as auth of the mirror, below configs")
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return fault(node, "endpoint %q is not an address such as https://mirror.example.com:5000", node.Value)
	}
	e.scheme, e.path = u.Scheme, strings.TrimSuffix(u.Path, "/")
	if port := u.Port(); e.scheme == "" {
		e.scheme = "https"
		if docker.IsLocalhost(u.Host) && port != "" && port != "443" {
			e.scheme = "http"
		}
	}
	e.path = cmp.Or(e.path, "/v2")
	e.host, err = docker.DefaultHost(u.Host)
	return err
}

// UnmarshalYAML reads a mapping from patterns to the text that replaces what they match.
func (r *rewrites) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fault(node, "rewrite is not a mapping such as \"^library/(.*)\": \"mirror/$1\"")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		pattern, err := regexp.Compile(node.Content[i].Value)
		if err != nil {
			return fault(node.Content[i], "rewrite: %v", err)
		}
		if name := unknownGroup(pattern, node.Content[i+1].Value); name != "" {
			return fault(node.Content[i+1], "rewrite %q: %q has no group %s, so nothing would be put there. "+
				"Put parentheses around what is meant, such as \"^library/(.*)\": \"mirror/$1\". Before a letter, a digit or _, write ${1}", node.Content[i+1].Value, pattern, name)
		}
		*r = append(*r, rewrite{pattern, node.Content[i+1].Value})
	}
	return nil
}

// groupReference is a $ and what follows it in the replacement of a pattern.
//
//upstream:relies-on std/regexp/regexp.go extract
var groupReference = regexp.MustCompile(`\$(?:\$|\{([\pL\p{Nd}_]+)\}|([\pL\p{Nd}_]+))`)

// unknownGroup returns the first group that a replacement uses and the pattern does not have,
// or an empty text.
func unknownGroup(pattern *regexp.Regexp, with string) string {
	for _, found := range groupReference.FindAllStringSubmatch(with, -1) {
		name := found[1] + found[2]
		if name == "" { // $$
			continue
		}
		if number, err := strconv.Atoi(name); err == nil && number <= pattern.NumSubexp() || pattern.SubexpIndex(name) >= 0 {
			continue
		}
		return name
	}
	return ""
}

// apply returns the name that the mirror uses for a repository.
func (r rewrites) apply(repository string) string {
	for _, one := range r {
		if name := one.pattern.ReplaceAllString(repository, one.with); name != repository {
			return name
		}
	}
	return repository
}

// UnmarshalYAML reads the credentials in any of the forms that the CRI knows.
func (c *credential) UnmarshalYAML(node *yaml.Node) error {
	var user, password, auth, token string
	fields := map[string]*string{"username": &user, "password": &password, "auth": &auth, "identity_token": &token}
	if node.Kind != yaml.MappingNode {
		return fault(node, "auth is not a mapping with username and password")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		field := fields[node.Content[i].Value]
		if field == nil {
			return fault(node.Content[i], "field %s not found; auth can have username, password, auth and identity_token", node.Content[i].Value)
		}
		*field = node.Content[i+1].Value
	}
	switch {
	case user != "":
		c.user, c.secret = user, password
	case token != "":
		c.secret = token
	case auth != "":
		decoded, err := base64.StdEncoding.DecodeString(auth)
		var ok bool
		if c.user, c.secret, ok = strings.Cut(string(decoded), ":"); err != nil || !ok {
			return fault(node, "auth is not the base64 of USER:PASSWORD")
		}
	}
	return nil
}

// UnmarshalYAML also reads the files, so that faults are found at once. They are read again when
// they are used, so that a user can replace them without a restart.
func (t *tlsConfig) UnmarshalYAML(node *yaml.Node) error {
	type plain tlsConfig
	if err := node.Decode((*plain)(t)); err != nil {
		return err
	}
	for i := 0; i < len(node.Content); i += 2 {
		if name := node.Content[i].Value; name != "ca_file" && name != "cert_file" && name != "key_file" && name != "insecure_skip_verify" {
			return fault(node.Content[i], "field %s not found; tls can have ca_file, cert_file, key_file and insecure_skip_verify", name)
		}
	}
	if _, err := t.load(); err != nil {
		return fault(node, "%v", err)
	}
	return nil
}

// Secrets returns the passwords and tokens in a registries.yaml, as far as it can be parsed. They
// must never be shown, even if the file has faults.
func Secrets(path string) []string {
	text, err := datadir.ReadText(path)
	if err != nil {
		return nil // without the file there are no secrets
	}
	var file struct {
		Configs map[string]struct {
			Auth struct {
				Password      string
				Auth          string
				IdentityToken string `yaml:"identity_token"`
			}
		}
	}
	_ = yaml.Unmarshal(text, &file)
	var secrets []string
	for _, c := range file.Configs {
		decoded, _ := base64.StdEncoding.DecodeString(c.Auth.Auth)
		_, password, _ := strings.Cut(string(decoded), ":")
		for _, secret := range []string{c.Auth.Password, c.Auth.Auth, password, c.Auth.IdentityToken} {
			if secret != "" {
				secrets = append(secrets, secret)
			}
		}
	}
	return secrets
}

// mirror returns the entry for a registry, or nil if there is none.
func (s *settings) mirror(registry string) *mirror {
	for _, name := range []string{registry, anyRegistry} {
		if m, ok := s.Mirrors[name]; ok {
			return &m
		}
	}
	return nil
}

// config returns the entry for an endpoint or a registry, or the zero value if there is none.
// Docker Hub may be listed under two names.
func (s *settings) config(host string) endpointConfig {
	names := []string{host, anyRegistry}
	if host == dockerHub {
		names = []string{host, "docker.io", anyRegistry}
	}
	for _, name := range names {
		if c, ok := s.Configs[name]; ok {
			return c
		}
	}
	return endpointConfig{}
}

// dockerHub is the host that serves the images of docker.io.
const dockerHub = "registry-1.docker.io"
