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

// This file has what others need to know while authorities are replaced: the other
// servers of the cluster, the nodes, and the check whether all have followed.

// FollowAuthorities prepares the files that a step puts into the folder of certificates
// of all servers of a cluster, unless they are there. It tells whether this server must
// be restarted to use them. It fails if the files do not follow the authorities of this
// server.
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
		return false, fmt.Errorf("the certificate authorities in %s are neither the cluster's nor the ones that the cluster had before: "+
			"copy those of another server there, or delete this node (`kubectl delete node`), run `kedge uninstall`, and join again with the current token", dir.ServerTLS())
	}
	return true, prepare(dir, files)
}

// holds tells whether a folder has all the files, with the same content.
func holds(folder string, files map[string][]byte) bool {
	for name, content := range files {
		there, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !bytes.Equal(bytes.TrimSpace(there), bytes.TrimSpace(content)) {
			return false
		}
	}
	return true
}

// IsReplaced tells whether a rotation replaces a file. file is its path in the folder of
// certificates.
func IsReplaced(file string) bool {
	return file == serviceAccountKey || slices.Contains(replaced, strings.TrimSuffix(file, filepath.Ext(file)))
}

// Successive tells whether one of two authorities, in PEM, replaces the other while the
// other is still trusted. Servers with these authorities trust each other.
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

// RotatedAt returns when the current authorities came into use.
func RotatedAt(dir datadir.Dir) (time.Time, error) {
	info, err := os.Stat(filepath.Join(dir.ServerTLS(), "server-ca.crt"))
	if err != nil {
		return time.Time{}, fmt.Errorf("read authorities (only a server that has started before has them): %w", err)
	}
	return info.ModTime(), nil
}

// Rotating tells whether the authorities are between the two steps of a rotation.
func (s *Server) Rotating() bool { return successor(s.serverCA.bundle) != nil }

// SignedNow tells whether the authority that signs now has signed a certificate of a node
// or server.
func (s *Server) SignedNow(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(s.clientCA.cert()) == nil || cert.CheckSignatureFrom(s.serverCA.cert()) == nil
}

// IssuedAt returns when kedge signed one of its leaves.
func IssuedAt(cert *x509.Certificate) time.Time { return cert.NotAfter.Add(-leafValidity) }

// Authorities identifies the authorities that nodes trust: it changes when they change.
func (s *Server) Authorities() string { return authorities(s.ServerCA(), s.ClientCA()) }

func authorities(serverCA, clientCA []byte) string {
	sum := sha256.Sum256(append(append([]byte{}, serverCA...), clientCA...))
	return hex.EncodeToString(sum[:])
}
