package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// FuzzCheckNode claims any name and addresses for a node. Accepted names are valid in
// file names, users and certificates, and are read back as the same node.
func FuzzCheckNode(f *testing.F) {
	f.Add("edge", "192.0.2.9", "2001:db8::9")
	f.Add("edge", "::ffff:127.0.0.1", "")
	f.Add("../a", "fe80::1%eth0", "")
	f.Add("a.b-c.9", "10.0.0.1", "")
	f.Add("system:node:a", "0.0.0.0", "")
	f.Fuzz(func(t *testing.T, name, first, second string) {
		var ips []netip.Addr
		for _, text := range []string{first, second} {
			if ip, err := netip.ParseAddr(text); err == nil {
				ips = append(ips, ip.Unmap())
			}
		}
		if checkNode(name, ips) != nil {
			return
		}
		if name == "" || len(name) > 253 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || !filepath.IsLocal(name) {
			t.Errorf("a node may be called %q", name)
		}
		for _, ip := range ips {
			if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Zone() != "" {
				t.Errorf("a node may have the address %s", ip)
			}
		}
		subject := pkix.Name{CommonName: NodeUser(name), Organization: []string{NodesGroup}}
		if node, err := NodeOfSubject(subject); err != nil || node != name {
			t.Errorf("%s is the node %q: %v", subject, node, err)
		}
	})
}

// FuzzPublicKey reads anything as a certificate request. A key that is returned can be
// used in a certificate.
func FuzzPublicKey(f *testing.F) {
	key, err := ecdsaKey()
	if err != nil {
		f.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, template := range []*x509.CertificateRequest{
		{},
		{Subject: pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}}, DNSNames: []string{APIName}},
	} {
		for _, signer := range []any{key, other} {
			der, err := x509.CreateCertificateRequest(rand.Reader, template, signer)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(der)
		}
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, der []byte) {
		key, err := publicKey(der)
		if err != nil {
			return
		}
		if _, err := x509.MarshalPKIXPublicKey(key); err != nil {
			t.Errorf("a key is taken that cannot be in a certificate: %v", err)
		}
		request, err := x509.ParseCertificateRequest(der)
		if err != nil || request.CheckSignature() != nil || !key.Equal(request.PublicKey) {
			t.Errorf("a key is taken that the sender need not have: %v", err)
		}
	})
}

// FuzzSecrets keeps anything that another server sends as the cluster's secrets. The
// known files are in their places, and no other file is written.
func FuzzSecrets(f *testing.F) {
	f.Add("server-ca.key", []byte("key"), "../../../etc/passwd", []byte("x"))
	f.Add("etcd/peer-ca.crt", []byte{}, "/etc/passwd", []byte("x"))
	f.Add("etcd/../server-ca.crt", []byte("x"), "", []byte("x"))
	f.Add("etcd", []byte("x"), "server-ca.crt/a", []byte("x"))
	f.Fuzz(func(t *testing.T, one string, first []byte, other string, second []byte) {
		root := t.TempDir()
		dir := datadir.Dir(filepath.Join(root, "data"))
		sent := map[string][]byte{one: first, other: second}
		if err := KeepSecrets(dir, sent); err != nil {
			t.Fatal(err)
		}
		kept, err := Secrets(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range shared {
			content, was := sent[name]
			if got, is := kept[name]; was != is || !slices.Equal(got, content) {
				t.Errorf("%s: got %[3]q on the disk, want %[2]q", name, content, got)
			}
		}
		err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if name, err := filepath.Rel(dir.ServerTLS(), path); err != nil || !slices.Contains(shared, name) {
				t.Errorf("%q and %q are written to %s", one, other, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzAuthorities reads anything as authorities in PEM. Each authority has a hash, and
// FindCA finds it by that hash.
func FuzzAuthorities(f *testing.F) {
	folder := f.TempDir()
	a, err := ensureAuthority(filepath.Join(folder, "ca"), "kedge-server-ca", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(a.certFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, text)
	f.Add(append(slices.Clone(text), text...), []byte{})
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("none")}), text[:len(text)/2])
	f.Fuzz(func(t *testing.T, one, other []byte) {
		hash, err := CAHash(one)
		hashes, errs := CAHashes(one)
		if (err == nil) != (errs == nil) || err == nil && hashes[len(hashes)-1] != hash {
			t.Errorf("the hash is %s, %v, and the hashes are %s, %v", hash, err, hashes, errs)
		}
		for _, hash := range hashes {
			if found, err := CAHash(FindCA(one, hash)); err != nil || found != hash {
				t.Errorf("the authority %s is found as %s: %v", hash, found, err)
			}
		}
		if Successive(one, other) != Successive(other, one) {
			t.Error("one authority replaces the other, and is not replaced by it")
		}
	})
}
