package pki

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// kubeconfigFile is an administrator's kubeconfig that kedge keeps up to date.
type kubeconfigFile struct {
	path   string
	mode   os.FileMode
	server string
}

// kubeconfig is the part of k8s.io/client-go/tools/clientcmd/api/v1.Config
// that kedge writes; its names are documented there.
//
//upstream:relies-on k8s.io/client-go/tools/clientcmd/api/v1/types.go Config Cluster AuthInfo Context
type kubeconfig struct {
	APIVersion     string          `json:"apiVersion"`
	Kind           string          `json:"kind"`
	Clusters       []namedCluster  `json:"clusters"`
	Users          []namedUser     `json:"users"`
	Contexts       []namedContexts `json:"contexts"`
	CurrentContext string          `json:"current-context"`
}

type namedCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server string `json:"server"`
		// []byte is base64 in JSON and YAML, as kubeconfigs want it.
		CA []byte `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type namedUser struct {
	Name string `json:"name"`
	User struct {
		Cert []byte `json:"client-certificate-data"`
		Key  []byte `json:"client-key-data"`
	} `json:"user"`
}

type namedContexts struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

// WriteKubeconfig writes the administrator's kubeconfig for the API at server, a URL such
// as https://127.0.0.1:6443. It is written again whenever its certificate is renewed.
func (s *Server) WriteKubeconfig(path string, mode os.FileMode, server string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := kubeconfigFile{path, mode, server}
	if err := s.writeKubeconfig(file); err != nil {
		return err
	}
	s.kubeconfigs = slices.DeleteFunc(s.kubeconfigs, func(f kubeconfigFile) bool { return f.path == path })
	s.kubeconfigs = append(s.kubeconfigs, file)
	return nil
}

// writeKubeconfig writes a kubeconfig, unless the file is up to date.
func (s *Server) writeKubeconfig(file kubeconfigFile) error {
	key, err := os.ReadFile(s.adminLeaf.keyFile)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
	}
	text, err := renderKubeconfig(file.server, s.ServerCA(), s.admin.Load(), key)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
	}
	old, err := os.ReadFile(file.path)
	if err == nil && bytes.Equal(old, text) {
		info, err := os.Stat(file.path)
		if err == nil && info.Mode().Perm() == file.mode {
			return nil
		}
	}
	// 0755: if the file's mode lets other users read it, they must be able to reach it.
	if err := os.MkdirAll(filepath.Dir(file.path), 0o755); err != nil {
		return fmt.Errorf("write kubeconfig: %w", datadir.Explain(err))
	}
	if err := datadir.WriteFile(file.path, text, file.mode); err != nil {
		return fmt.Errorf("write kubeconfig (--write-kubeconfig sets the path): %w", err)
	}
	return nil
}

// renderKubeconfig makes the text. The one cluster, user and context are named
// default, as k3s names them.
func renderKubeconfig(server string, ca []byte, cert *tls.Certificate, key []byte) ([]byte, error) {
	const name = "default"
	k := kubeconfig{
		APIVersion: "v1", Kind: "Config",
		Clusters: []namedCluster{{Name: name}}, Users: []namedUser{{Name: name}}, Contexts: []namedContexts{{Name: name}},
		CurrentContext: name,
	}
	k.Clusters[0].Cluster.Server, k.Clusters[0].Cluster.CA = server, ca
	k.Users[0].User.Cert, k.Users[0].User.Key = encodeDER(cert.Certificate), key
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = name, name
	return yaml.Marshal(k)
}
