// Package store runs databases and an etcd as users have them, with TLS, for servers that keep their
// state there. Tests below tests/ call it.
package store

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	// nobody is the user as which databases run, because they refuse to run as root.
	nobody = 65534
	// Password is kedge's. It has characters that must be escaped in a URL.
	Password = "s3cret/word"
)

// Store is a datastore that a user would run, on a host of its own.
type Store struct {
	Host *harness.Host
	// Endpoint is the setting for kedge.
	Endpoint string

	t *testing.T
	// folder is for the store's data and certificates.
	folder  string
	command []string
	process *harness.Cmd
	// kill is the signal that ends the store like a crash, and leaves no child process.
	kill syscall.Signal
}

// newStore makes a host for a datastore, with certificates.
func newStore(t *testing.T, network *harness.Network) *Store {
	t.Helper()
	host := network.NewHost(t, "store")
	s := &Store{t: t, Host: host, folder: host.Scratch("store"), kill: syscall.SIGKILL}
	// The folder above all scratch folders is only for root.
	if err := os.Chmod(filepath.Dir(s.folder), 0o755); err != nil {
		t.Fatal(err)
	}
	s.certify()
	err := filepath.Walk(s.folder, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// certify makes a certificate authority, a certificate for the store, and one for the user kedge.
func (s *Store) certify() {
	s.t.Helper()
	authorityKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "store-ca"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	write := func(name, kind string, der []byte) {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(s.file(name), text, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	issue := func(name string, template *x509.Certificate, key *ecdsa.PrivateKey) {
		der, err := x509.CreateCertificate(rand.Reader, template, authority, &key.PublicKey, authorityKey)
		if err != nil {
			s.t.Fatal(err)
		}
		write(name+".crt", "CERTIFICATE", der)
		if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			s.t.Fatal(err)
		}
		write(name+".key", "PRIVATE KEY", der)
	}
	issue("ca", authority, authorityKey)
	for i, name := range []string{"store", "kedge"} {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		issue(name, &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(24 * time.Hour),
			IPAddresses: []net.IP{s.Host.Address.AsSlice()}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, key)
	}
}

func (s *Store) file(name string) string { return filepath.Join(s.folder, name) }

// Files returns kedge's arguments for TLS, on a host that has the files.
func (s *Store) Files(host *harness.Host) []string {
	s.t.Helper()
	for _, name := range []string{"ca.crt", "kedge.crt", "kedge.key"} {
		text, err := os.ReadFile(s.file(name))
		if err != nil {
			s.t.Fatal(err)
		}
		host.WriteFile("/etc/kedge/store/"+name, string(text))
	}
	return []string{
		"--datastore-cafile=/etc/kedge/store/ca.crt",
		"--datastore-certfile=/etc/kedge/store/kedge.crt",
		"--datastore-keyfile=/etc/kedge/store/kedge.key",
	}
}

// StartServer starts a kedge that keeps its state in the store, on a host of its own.
func (s *Store) StartServer(network *harness.Network, name string, args ...string) *harness.Server {
	s.t.Helper()
	host := cluster.NewHost(s.t, network, name)
	host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.Endpoint)
	return host.StartServer(s.t, append(s.Files(host), args...)...)
}

// prepare returns a command on the store's host, as the store's user.
func (s *Store) prepare(name string, args ...string) *harness.Cmd {
	c := s.Host.Command(s.t.Context(), name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c.Dir = "/"
	return c
}

func (s *Store) run(name string, args ...string) string {
	s.t.Helper()
	output, err := s.prepare(name, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, output)
	}
	return string(output)
}

// Start starts the store and does not wait for it.
func (s *Store) Start() {
	s.t.Helper()
	log, err := os.OpenFile(s.file("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process = s.prepare(s.command[0], s.command[1:]...)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Crash ends the store at once.
func (s *Store) Crash() {
	s.t.Helper()
	if err := s.process.Process.Signal(s.kill); err != nil {
		s.t.Fatal(err)
	}
	_ = s.process.Wait()
}

// NewPostgreSQL makes a PostgreSQL with a user kedge, who shows a certificate or a password. It does
// not run yet.
func NewPostgreSQL(t *testing.T, network *harness.Network) *Store {
	t.Helper()
	harness.Need(t, "postgresql")
	bin, err := image.PostgreSQLPrograms()
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, network)
	data := s.file("data")
	s.run(bin+"/initdb", "--no-sync", "--auth=trust", "--username=postgres", "-D", data)
	access := "local all all trust\nhostssl all kedge all scram-sha-256 clientcert=verify-full\nhost all plain all scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	s.command = []string{
		bin + "/postgres", "-D", data, "-k", s.folder, "-h", "*", "-c", "ssl=on", "-c", "ssl_ca_file=" + s.file("ca.crt"),
		"-c", "ssl_cert_file=" + s.file("store.crt"), "-c", "ssl_key_file=" + s.file("store.key"),
	}
	s.kill = syscall.SIGQUIT // "immediate" shutdown: the postmaster ends its children too
	s.Start()
	harness.Eventually(t, cluster.Patience, "PostgreSQL", func() error {
		for _, user := range []string{"kedge", "plain"} {
			statement := "CREATE ROLE " + user + " LOGIN CREATEDB PASSWORD '" + Password + "'"
			output, err := s.prepare("psql", "-h", s.folder, "-U", "postgres", "-c", statement).CombinedOutput()
			if err != nil && !strings.Contains(string(output), "already exists") {
				return err
			}
		}
		return nil
	})
	s.Crash()
	s.Endpoint = "postgres://kedge:s3cret%2Fword@" + s.Host.Address.String() + "/cluster"
	return s
}

// NewMariaDB makes a MariaDB with a user who has a password, and with a binary log, as docs/datastores.md
// says. It does not run yet.
func NewMariaDB(t *testing.T, network *harness.Network) *Store {
	t.Helper()
	harness.Need(t, "mariadb-server-core", "mariadb-client-core")
	s := newStore(t, network)
	// By default, MariaDB 11.8 maps 8 TiB of addresses, and user-mode Linux does not have as many. Older versions do not know the option.
	const addresses = "--loose-innodb-buffer-pool-size-max=128M"
	s.run("mariadb-install-db", "--no-defaults", "--tmpdir="+s.folder, "--datadir="+s.file("data"), "--auth-root-authentication-method=normal", "--skip-test-db", addresses)
	socket := s.file("socket")
	s.command = []string{
		"/usr/sbin/mariadbd", "--no-defaults", "--tmpdir=" + s.folder, "--datadir=" + s.file("data"), "--socket=" + socket, "--bind-address=0.0.0.0",
		"--ssl-ca=" + s.file("ca.crt"), "--ssl-cert=" + s.file("store.crt"), "--ssl-key=" + s.file("store.key"), "--skip-name-resolve", addresses,
		"--log-bin=" + s.file("data") + "/binlog", "--sync-binlog=1",
	}
	s.Start()
	harness.Eventually(t, cluster.Patience, "MariaDB", func() error {
		_, err := s.prepare("mariadb", "--no-defaults", "--user=root", "--socket="+socket, "-e",
			"CREATE USER IF NOT EXISTS kedge IDENTIFIED BY '"+Password+"' REQUIRE X509; GRANT ALL ON `cluster%`.* TO kedge").Output()
		return err
	})
	s.Crash()
	s.Endpoint = "mysql://kedge:" + Password + "@tcp(" + s.Host.Address.String() + ":3306)/cluster"
	return s
}

// EtcdPackage has the program of NewEtcd.
const EtcdPackage = "./tests/harness/store/etcd"

// NewEtcd makes an etcd with one member. It does not run yet.
func NewEtcd(t *testing.T, network *harness.Network) *Store {
	t.Helper()
	s := newStore(t, network)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	program, err := image.Build(repository, EtcdPackage)
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoint = "https://" + s.Host.Address.String() + ":2379"
	s.command = []string{program, s.file("data"), s.Endpoint, s.file("ca.crt"), s.file("store.crt"), s.file("store.key")}
	return s
}
