package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// What others have to know while authorities are replaced: the other servers of a
// cluster, nodes, and who asks whether all have followed.

// FollowAuthorities prepares what a step puts into the folder of certificates of all
// servers of a cluster, unless it is there, and tells whether a start is wanted, which
// takes it.
func FollowAuthorities(dir datadir.Dir, files map[string][]byte) (bool, error) {
	if holds(dir.ServerTLS(), files) {
		return false, os.RemoveAll(dir.NextServerTLS())
	}
	if holds(dir.NextServerTLS(), files) {
		return true, nil
	}
	const serverCA = "server-ca.crt"
	own, err := readCertificates(filepath.Join(dir.ServerTLS(), serverCA))
	if err != nil {
		return false, err
	}
	theirs, err := parseCertificates(files[serverCA])
	if err != nil {
		return false, fmt.Errorf("read the cluster's authority: %w", err)
	}
	if slices.EqualFunc(own, theirs, (*x509.Certificate).Equal) || !related(own, theirs) {
		return false, fmt.Errorf("the authorities in %s are not those of the cluster, nor those that it had last: "+
			"put those of another server there, or delete this node (kubectl delete node), run `kedge uninstall`, and join it anew with the token of now", dir.ServerTLS())
	}
	return true, prepare(dir, files)
}

// holds tells whether a folder has files as they are.
func holds(folder string, files map[string][]byte) bool {
	for name, content := range files {
		there, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !bytes.Equal(bytes.TrimSpace(there), bytes.TrimSpace(content)) {
			return false
		}
	}
	return true
}

// IsReplaced tells whether a file, by the path in the folder of certificates, is one
// of those that are replaced.
func IsReplaced(file string) bool {
	return file == serviceAccountKey || slices.Contains(replaced, strings.TrimSuffix(file, filepath.Ext(file)))
}

// Successive tells whether of two authorities, in PEM, one replaces the other, which
// is trusted yet: servers with these trust each other.
func Successive(one, other []byte) bool {
	a, errA := parseCertificates(one)
	b, errB := parseCertificates(other)
	return errA == nil && errB == nil && (successor(a) != nil || successor(b) != nil) && related(a, b)
}

// CAHashes returns the hash, as CAHash makes it, of each certificate in PEM.
func CAHashes(caPEM []byte) ([]string, error) {
	certs, err := parseCertificates(caPEM)
	if err != nil {
		return nil, fmt.Errorf("hash certificate authority: %w", err)
	}
	var hashes []string
	for _, cert := range certs {
		hashes = append(hashes, hashOf(cert))
	}
	return hashes, nil
}

// RotatedAt is when the authorities were taken into use.
func RotatedAt(dir datadir.Dir) (time.Time, error) {
	info, err := os.Stat(filepath.Join(dir.ServerTLS(), "server-ca.crt"))
	if err != nil {
		return time.Time{}, fmt.Errorf("look at authorities (is this a server, and started before?): %w", err)
	}
	return info.ModTime(), nil
}

// Rotating tells whether the authorities are between the two steps.
func (s *Server) Rotating() bool { return successor(s.serverCA.bundle) != nil }

// SignedNow tells whether a certificate of a node or server is of the authority that
// signs now.
func (s *Server) SignedNow(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(s.clientCA.cert()) == nil || cert.CheckSignatureFrom(s.serverCA.cert()) == nil
}

// IssuedAt is when one of kedge's leaves was signed.
func IssuedAt(cert *x509.Certificate) time.Time { return cert.NotAfter.Add(-leafValidity) }

// Authorities names what nodes trust: it is another one when that is.
func (s *Server) Authorities() string { return authorities(s.ServerCA(), s.ClientCA()) }

func authorities(serverCA, clientCA []byte) string {
	sum := sha256.Sum256(append(append([]byte{}, serverCA...), clientCA...))
	return hex.EncodeToString(sum[:])
}
