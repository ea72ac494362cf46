package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// restarted returns the PKI of a server after a start.
func restarted(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	if err := TakeAuthorities(o.Dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	return ensure(t, o)
}

// meet makes a node call a server, and returns why they do not trust each other.
func meet(n *Node, s *Server) error {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	client := tls.Client(ours, n.TLS(NodeUser("edge")))
	server := tls.Server(theirs, &tls.Config{GetCertificate: s.ServingCertificate, ClientAuth: tls.RequestClientCert})
	fault := make(chan error, 1)
	go func() { fault <- server.Handshake() }()
	err := client.Handshake()
	if err != nil {
		ours.Close()
	}
	if err := errors.Join(err, <-fault); err != nil {
		return err
	}
	_, err = s.NodeOf(server.ConnectionState().PeerCertificates)
	return err
}

// called makes a server call a node's kubelet, and returns why they do not trust each
// other.
func called(t *testing.T, n *Node, s *Server) error {
	t.Helper()
	check := func(chain []*x509.Certificate, authorities []byte, usage x509.ExtKeyUsage) error {
		roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
		roots.AppendCertsFromPEM(authorities)
		for _, cert := range chain[1:] {
			intermediates.AddCert(cert)
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	serving, err := readCertificates(n.ServingCertFile())
	if err != nil {
		t.Fatal(err)
	}
	caller, err := readCertificates(s.KubeletClientCertFile)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile(n.ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	return errors.Join(check(serving, s.ClientCA(), x509.ExtKeyUsageServerAuth), check(caller, trusted, x509.ExtKeyUsageClientAuth))
}

func TestRotateAuthorities(t *testing.T) {
	o := options(t)
	before := ensure(t, o)
	ips := addresses("192.0.2.9")
	follow := func(n *Node, s *Server) {
		t.Helper()
		join(t, s, n, ips)
		if !n.Follows(s.Authorities()) {
			t.Error("a node that has renewed does not trust what it should")
		}
	}
	n := NewNode(options(t).Dir, "edge", nil)
	follow(n, before)
	oldHash, err := CAHash(before.ServerCA())
	if err != nil {
		t.Fatal(err)
	}
	oldKey, err := readKey(before.ServiceAccountKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	oldServing, err := readCertificates(n.ServingCertFile())
	if err != nil {
		t.Fatal(err)
	}
	works := func(what string, s *Server) {
		t.Helper()
		if err := errors.Join(meet(n, s), called(t, n, s)); err != nil {
			t.Errorf("%s: connect the node and the server to each other: %v", what, err)
		}
	}
	works("before", before)

	if err := PrepareAuthorities(o.Dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := PrepareAuthorities(o.Dir, time.Now()); !errors.Is(err, ErrPrepared) {
		t.Errorf("prepare authorities twice: got error %v, want %v", err, ErrPrepared)
	}
	works("prepared", ensure(t, o))
	// Files that change before the start, such as other keys, must not be lost.
	other := filepath.Join(o.Dir.ServerTLS(), "other.key")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if content, err := os.ReadFile(other); err != nil || string(content) != "other" {
			t.Errorf("got %q, %v in a file that is not replaced, want \"other\"", content, err)
		}
	}()
	between := restarted(t, o)
	if !between.Rotating() || before.Rotating() {
		t.Error("Rotating: want true between the two steps, and false before")
	}
	works("a node that has not followed", between)
	if n.Follows(between.Authorities()) || between.SignedNow(oldServing[0]) {
		t.Error("a node that has not followed is taken for one that has")
	}
	newHash, err := CAHash(between.ServerCA())
	if err != nil || newHash == oldHash || FindCA(between.ServerCA(), oldHash) == nil || FindCA(between.ServerCA(), newHash) == nil {
		t.Errorf("tokens pin %s, %v", newHash, err)
	}
	if err := PrepareAuthorities(o.Dir, time.Now()); err == nil || !strings.Contains(err.Error(), "--finish") {
		t.Errorf("before the second step: %v", err)
	}
	follow(n, between)
	works("a node that has followed", between)
	works("and a server that has not", before)
	newServing, err := readCertificates(n.ServingCertFile())
	if err != nil || !between.SignedNow(newServing[0]) {
		t.Errorf("a node that has followed is taken for one that has not: %v", err)
	}
	// A node that joins with the new hash or the old one trusts only that authority.
	for _, hash := range []string{oldHash, newHash} {
		pinned := NewNode(options(t).Dir, "edge", nil)
		current := *n.current.Load()
		current.servers = x509.NewCertPool()
		current.servers.AppendCertsFromPEM(FindCA(between.ServerCA(), hash))
		pinned.current.Store(&current)
		if err := meet(pinned, between); err != nil {
			t.Errorf("pinned to %s: %v", hash, err)
		}
	}
	content, err := os.ReadFile(between.ServiceAccountKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	publics, err := keyutil.ParsePublicKeysPEM(content)
	accepts := func(key crypto.Signer) bool {
		return slices.ContainsFunc(publics, func(p any) bool { return key.(*ecdsa.PrivateKey).PublicKey.Equal(p) })
	}
	signer, errSigner := keyutil.ParsePrivateKeyPEM(content)
	_, isNew := signer.(*rsa.PrivateKey)
	if err := errors.Join(err, errSigner); err != nil || len(publics) != 2 || !accepts(oldKey) || !isNew {
		t.Errorf("tokens of the old key are of no use, or it signs yet: %v", err)
	}

	if err := DropAuthorities(o.Dir); err != nil {
		t.Fatal(err)
	}
	after := restarted(t, o)
	works("a node that has not dropped the old ones", after)
	follow(n, after)
	works("after", after)
	if hash, err := CAHash(after.ServerCA()); err != nil || hash != newHash || FindCA(after.ServerCA(), oldHash) != nil || after.Rotating() {
		t.Errorf("got hash %s, %v, want %s; the old authority must be gone, and no replacement in progress", hash, err, newHash)
	}
	if err := meet(n, before); err == nil {
		t.Error("the old authority is trusted yet")
	}
	if err := DropAuthorities(o.Dir); err == nil || !strings.Contains(err.Error(), "rotate-ca`") {
		t.Errorf("drop authorities with none prepared: got error %v, want one that names the command", err)
	}
	// A second rotation works as well.
	if err := PrepareAuthorities(o.Dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	works("the next time", restarted(t, o))
}

// TestTakeAuthoritiesAfterInterruptions: after an interruption at any point, there are
// authorities.
func TestTakeAuthoritiesAfterInterruptions(t *testing.T) {
	for _, interrupted := range []string{"while preparing", "while copying", "between", "at the end", "after all"} {
		o := options(t)
		before := ensure(t, o)
		if interrupted == "while preparing" {
			if err := os.MkdirAll(o.Dir.NextServerTLS()+".tmp/half", 0o700); err != nil {
				t.Fatal(err)
			}
			if s := restarted(t, o); s.Authorities() != before.Authorities() {
				t.Error("authorities that were half prepared were used")
			}
		}
		if err := PrepareAuthorities(o.Dir, time.Now()); err != nil {
			t.Fatal(err)
		}
		switch interrupted {
		case "while copying":
			if err := os.MkdirAll(o.Dir.NextServerTLS()+"-whole.tmp/half", 0o700); err != nil {
				t.Fatal(err)
			}
		case "between", "at the end":
			whole := o.Dir.NextServerTLS() + "-whole"
			if err := errors.Join(copyFolder(o.Dir.ServerTLS(), whole), copyFolder(o.Dir.NextServerTLS(), whole)); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(o.Dir.ServerTLS(), o.Dir.PreviousServerTLS()); err != nil {
				t.Fatal(err)
			}
			if interrupted == "between" {
				break
			}
			if err := os.Rename(whole, o.Dir.ServerTLS()); err != nil {
				t.Fatal(err)
			}
		case "after all":
			restarted(t, o)
		}
		if s := restarted(t, o); !s.Rotating() {
			t.Errorf("%s: the new ones were not taken", interrupted)
		}
		left, err := filepath.Glob(o.Dir.NextServerTLS() + "*")
		if err != nil || len(left) > 0 {
			t.Errorf("%s: got %v, %v left, want nothing", interrupted, left, err)
		}
		if kept, err := readCertificates(filepath.Join(o.Dir.PreviousServerTLS(), "server-ca.crt")); err != nil || !kept[0].Equal(before.serverCA.cert()) {
			t.Errorf("%s: the previous authorities were not kept: %v", interrupted, err)
		}
		info, err := os.Stat(filepath.Join(o.Dir.ServerTLS(), "server-ca.key"))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: server-ca.key: got %v, %v, want mode 0600", interrupted, info, err)
		}
	}
}

// TestTakeAuthoritiesOfOthers takes a step after a snapshot with other authorities was
// restored.
func TestTakeAuthoritiesOfOthers(t *testing.T) {
	o := options(t)
	ensure(t, o)
	if err := PrepareAuthorities(o.Dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"server-ca.crt", "server-ca.key"} {
		remove(t, filepath.Join(o.Dir.ServerTLS(), name))
	}
	other := ensure(t, o)
	if s := restarted(t, o); s.Authorities() != other.Authorities() {
		t.Error("authorities for others were taken")
	}
	if _, err := os.Stat(o.Dir.NextServerTLS()); err == nil {
		t.Error("the prepared authorities are still there, want them removed")
	}
}

// TestRotateRefuses a user's own authority that another authority has signed.
func TestRotateRefuses(t *testing.T) {
	o := options(t)
	s := ensure(t, o)
	key, err := readKey(s.ServerCAKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	rootKey, err := ecdsaKey()
	if err != nil {
		t.Fatal(err)
	}
	root := &authority{certFile: filepath.Join(t.TempDir(), "root.crt"), key: rootKey}
	if err := root.create("root", time.Now()); err != nil {
		t.Fatal(err)
	}
	own := &authority{certFile: filepath.Join(t.TempDir(), "own.crt"), key: key}
	if err := own.create("own", time.Now()); err != nil {
		t.Fatal(err)
	}
	below, err := cross(own.cert(), root.cert(), rootKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := datadir.WriteFile(s.ServerCAFile, encodeCertificates(below, root.cert()), certMode); err != nil {
		t.Fatal(err)
	}
	if s := ensure(t, o); s.Rotating() {
		t.Error("an authority below another is taken for one that replaces it")
	}
	if err := PrepareAuthorities(o.Dir, time.Now()); err == nil || !strings.Contains(err.Error(), "of your own") {
		t.Errorf("prepare with authorities of the user: got error %v, want it refused", err)
	}
	if _, err := os.Stat(o.Dir.NextServerTLS() + ".tmp"); err == nil {
		t.Error("the folder of the refused preparation is still there")
	}
}

// TestFollowAuthorities follows a step that another server of the cluster has prepared.
func TestFollowAuthorities(t *testing.T) {
	o := options(t)
	o.Etcd = true
	ensure(t, o)
	follow := func(files map[string][]byte, want bool) {
		t.Helper()
		if wanted, err := FollowAuthorities(o.Dir, files); err != nil || wanted != want {
			t.Errorf("got restart wanted %t, %v, want %t", wanted, err, want)
		}
		if _, err := os.Stat(o.Dir.NextServerTLS()); (err == nil) != want {
			t.Errorf("folder of prepared authorities: got %v, want it there: %t", err, want)
		}
	}
	prepared := func(files map[string][]byte, err error) map[string][]byte {
		t.Helper()
		if err != nil || len(files) != 11 {
			t.Fatalf("%d files, %v", len(files), err)
		}
		return files
	}
	superseded := prepared(NextAuthorities(o.Dir, time.Now()))
	next := prepared(NextAuthorities(o.Dir, time.Now()))
	follow(superseded, true)
	follow(next, true)
	follow(next, true)
	if _, err := LastAuthorities(o.Dir); !errors.Is(err, ErrPrepared) {
		t.Errorf("before the start: %v", err)
	}
	before, err := os.ReadFile(filepath.Join(o.Dir.ServerTLS(), "server-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	restarted(t, o)
	follow(next, false)
	last := prepared(LastAuthorities(o.Dir))
	authority := "server-ca.crt"
	if !Successive(before, next[authority]) || !Successive(next[authority], last[authority]) || Successive(before, last[authority]) || Successive(before, nil) {
		t.Error("Successive: want true for one step, and false for two")
	}
	follow(last, true)
	follow(next, false) // the prepared step must not be taken
	follow(last, true)
	restarted(t, o)
	for _, file := range []string{"etcd/peer-ca.crt", "service.key", "encryption.key"} {
		if replaced := IsReplaced(file); replaced != (file != "encryption.key") {
			t.Errorf("%s is replaced: %t", file, replaced)
		}
	}
	for what, files := range map[string]map[string][]byte{
		"two steps away":       superseded,
		"of another key alone": {authority: last[authority], serviceAccountKey: []byte("another")},
	} {
		if _, err := FollowAuthorities(o.Dir, files); err == nil || !strings.Contains(err.Error(), "kubectl delete node") {
			t.Errorf("%s: got error %v, want one that says to delete the node", what, err)
		}
	}
}
