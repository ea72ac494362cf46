package pki

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// KubeconfigFile is an administrator's kubeconfig that kedge keeps up to date.
type KubeconfigFile struct {
	Path string
	Mode os.FileMode
	// Group owns the file, besides root: a name or a number, or empty for root's.
	Group string
	// Name is that of the cluster, the user and the context.
	Name string
	// Server is the URL of the API, such as https://127.0.0.1:6443.
	Server string
}

// WriteKubeconfig writes the administrator's kubeconfig. It is written again whenever its
// certificate is renewed.
func (s *Server) WriteKubeconfig(file KubeconfigFile) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writeKubeconfig(file); err != nil {
		return err
	}
	s.kubeconfigs = slices.DeleteFunc(s.kubeconfigs, func(f KubeconfigFile) bool { return f.Path == file.Path })
	s.kubeconfigs = append(s.kubeconfigs, file)
	return nil
}

// writeKubeconfig writes a kubeconfig, unless the file is up to date.
func (s *Server) writeKubeconfig(file KubeconfigFile) error {
	key, err := os.ReadFile(s.adminLeaf.keyFile)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
	}
	text, err := renderKubeconfig(file, s.ServerCA(), s.admin.Load(), key)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
	}
	gid, err := groupID(file.Group)
	if err != nil {
		return err
	}
	old, err := datadir.ReadText(file.Path)
	if err == nil && bytes.Equal(old, text) {
		info, err := os.Stat(file.Path)
		if err == nil && info.Mode().Perm() == file.Mode && (gid < 0 || info.Sys().(*syscall.Stat_t).Gid == uint32(gid)) {
			return nil
		}
	}
	// 0755: if the file's mode lets other users read it, they must be able to reach it.
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
		return fmt.Errorf("write kubeconfig: %w", datadir.Explain(err))
	}
	if err := datadir.WriteFile(file.Path, text, file.Mode); err != nil {
		return fmt.Errorf("write kubeconfig (--write-kubeconfig sets the path): %w", err)
	}
	if err := os.Chown(file.Path, -1, gid); gid >= 0 && err != nil {
		return fmt.Errorf("set write-kubeconfig-group: %w", err)
	}
	return nil
}

// groupID returns the number of a group, which is given by name or by number. It is -1
// without a group.
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	found, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("write-kubeconfig-group: this host has no group %q: make it, or set another: %w", group, err)
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return 0, fmt.Errorf("write-kubeconfig-group: read the number of %s: %w", group, err)
	}
	return gid, nil
}

// renderKubeconfig makes the text.
func renderKubeconfig(file KubeconfigFile, ca []byte, cert *tls.Certificate, key []byte) ([]byte, error) {
	name := file.Name
	return yaml.Marshal(clientcmdv1.Config{
		APIVersion: "v1", Kind: "Config",
		Clusters:       []clientcmdv1.NamedCluster{{Name: name, Cluster: clientcmdv1.Cluster{Server: file.Server, CertificateAuthorityData: ca}}},
		AuthInfos:      []clientcmdv1.NamedAuthInfo{{Name: name, AuthInfo: clientcmdv1.AuthInfo{ClientCertificateData: encodeDER(cert.Certificate), ClientKeyData: key}}},
		Contexts:       []clientcmdv1.NamedContext{{Name: name, Context: clientcmdv1.Context{Cluster: name, AuthInfo: name}}},
		CurrentContext: name,
	})
}
