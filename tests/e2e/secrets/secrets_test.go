// Package secrets looks for Secrets in the files of the datastore, before, while and after the
// encryption keys are replaced, with servers killed in between.
package secrets

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	namespace = "default"
	database  = "/var/lib/kedge/server/db"
	// secret is in every Secret, and public in a ConfigMap. Where secret is not found, public
	// must be found.
	secret = "nobody-may-read-this-anywhere"
	public = "anybody-may-read-this-anywhere"
	many   = 100
	// longest is how long a server runs between kills. It is longer than a change of keys takes.
	longest = 25 * time.Second
)

// quick makes changes of the keys wait for 15 seconds instead of 70 for requests that began earlier.
const quick = "--kube-apiserver-arg=request-timeout=5s"

// run runs `kedge secrets-encrypt` on a host.
func run(host *harness.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Patience)
	defer cancel()
	output, err := host.Kedge(ctx, append([]string{"secrets-encrypt"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

func must(t *testing.T, host *harness.Host, args ...string) string {
	t.Helper()
	output, err := run(host, args...)
	if err != nil {
		t.Fatalf("kedge secrets-encrypt %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return output
}

// rest waits until a server has nothing left to do, and the stored state fits.
func rest(t *testing.T, host *harness.Host, what string, fits func(encryption.Status) bool) (s encryption.Status) {
	t.Helper()
	harness.Eventually(t, cluster.Patience, what, func() error {
		output, err := host.Kedge(t.Context(), "secrets-encrypt", "status", "--output=json").Output()
		s = encryption.Status{}
		if err == nil {
			err = json.Unmarshal(output, &s)
		}
		if err == nil && (s.Pending || s.Lost > 0 || !fits(s)) {
			err = fmt.Errorf("it is %s", output)
		}
		return err
	})
	return s
}

func on(s encryption.Status) bool {
	return s.Encrypted && s.Plain == 0 && len(s.Keys) == 1 && s.Keys[0].Secrets >= many
}

func off(s encryption.Status) bool {
	return !s.Encrypted && s.Plain >= many && len(s.Keys) == 0
}

// fill creates a ConfigMap and many Secrets.
func fill(t *testing.T, server *harness.Server) {
	t.Helper()
	client := server.Client().CoreV1()
	// The administrator gets its rights just after the API starts.
	harness.Eventually(t, time.Minute, "the administrator to be one", func() error {
		_, err := client.ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "public"}, Data: map[string]string{"text": public},
		}, metav1.CreateOptions{})
		return err
	})
	for n := range many {
		add(t, server, fmt.Sprint("secret-", n))
	}
}

func add(t *testing.T, server *harness.Server, name string) {
	t.Helper()
	_, err := server.Client().CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"text": []byte(secret + name)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// wantAll checks that a server shows all Secrets, from the datastore and from its cache.
func wantAll(t *testing.T, server *harness.Server) {
	t.Helper()
	for _, version := range []string{"", "0"} {
		list, err := server.Client().CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatalf("%s cannot read the Secrets: %v", server.Host.Name, err)
		}
		found := 0
		for _, object := range list.Items {
			if string(object.Data["text"]) == secret+object.Name {
				found++
			}
		}
		if found < many {
			t.Errorf("%s shows %d Secrets of %d", server.Host.Name, found, many)
		}
	}
}

// contains tells whether a file below a folder of a host has a text, plain or encoded as in JSON.
func contains(t *testing.T, host *harness.Host, folder, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(host.Path(folder), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var content []byte
			content, err = os.ReadFile(path)
			encoded := base64.StdEncoding.EncodeToString([]byte(text))
			found = found || bytes.Contains(content, []byte(text)) || bytes.Contains(content, []byte(encoded[:len(encoded)-4]))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // files come and go
		}
		return err
	})
	if err != nil {
		t.Errorf("look into the datastore: %v", err)
	}
	return found
}

// guard looks for Secrets in the files of hosts until the returned function is called.
func guard(t *testing.T, hosts ...*harness.Host) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for last := false; !last; {
			last = ctx.Err() != nil
			for _, host := range hosts {
				if contains(t, host, database, secret) {
					t.Errorf("a Secret is in the files of the datastore on %s", host.Name)
					return
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
		for _, host := range hosts {
			if !contains(t, host, database, public) {
				t.Errorf("the value that is not secret is not in the files of the datastore on %s either, so the test shows nothing", host.Name)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		looking.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestOneServer tests one server with SQLite: keys are rotated, the server is killed during that, a
// snapshot is restored, and encryption is turned off and on.
func TestOneServer(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	server := host.StartServer(t, "--disable-agent", quick)
	server.WaitAPI()
	stop := guard(t, host)
	fill(t, server)
	t.Logf("%s", must(t, host, "status"))
	first := rest(t, host, "the first key", on).Keys[0].Name

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rotating := host.Kedge(t.Context(), "secrets-encrypt", "rotate")
	if err := rotating.Start(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		time.Sleep(time.Duration(random.Int64N(int64(longest))))
		server.Kill9()
		server.Start()
		server.WaitAPI()
		wantAll(t, server)
	}
	_ = rotating.Wait() // it fails, because its server was killed
	second := rest(t, host, "the end of a rotation", on).Keys[0].Name
	if second == first {
		t.Error("the key is the old one")
	}
	wantAll(t, server)

	location := strings.TrimPrefix(cluster.Of(t, server).MustSnapshot(host, "save"), "file://")
	if output := must(t, host, "rotate"); !strings.Contains(output, "Secrets are encrypted with the key") || strings.Contains(output, second) {
		t.Errorf("rotate said %q", output)
	}
	must(t, host, "reencrypt")
	wantAll(t, server)
	server.Terminate()
	cluster.Of(t, server).MustSnapshot(host, "restore", location)
	server.Start()
	server.WaitAPI()
	if rest(t, host, "the snapshot's key", on).Keys[0].Name != second {
		t.Error("the key is not the snapshot's")
	}
	wantAll(t, server)
	stop()

	host.WriteFile("/etc/kedge/config.yaml", "secrets-encryption: false\n")
	server.Terminate()
	server.Start()
	server.WaitAPI()
	rest(t, host, "no encryption", off)
	wantAll(t, server)
	if !contains(t, host, database, secret) {
		t.Error("the unencrypted text is not found in the datastore, so the test shows nothing")
	}
	if output, err := run(host, "rotate"); err == nil || !strings.Contains(output, "secrets-encryption: true") {
		t.Errorf("rotate without encryption: got %v, %q, want it refused with the setting that turns it on", err, output)
	}
	host.WriteFile("/etc/kedge/config.yaml", "secrets-encryption: true\n")
	server.Terminate()
	server.Start()
	server.WaitAPI()
	rest(t, host, "encryption again", on)
	wantAll(t, server)
	t.Logf("%s", must(t, host, "status"))
}

// TestSeveralServers tests three servers with etcd: each server sees at once what another one has
// changed. A server that was down sees it when it is back.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := network.NewHost(t, "server-1").StartServer(t, "--cluster-init", "--disable-agent", quick)
	first.WaitAPI()
	servers := []*harness.Server{first}
	for _, name := range []string{"server-2", "server-3"} {
		server := network.NewHost(t, name).StartServer(t, "--server=https://"+first.Host.Address.String()+":6443",
			"--token="+first.Token(), "--disable-agent", quick)
		server.WaitAPI()
		servers = append(servers, server)
	}
	stop := guard(t, first.Host, servers[1].Host, servers[2].Host)
	fill(t, servers[1])
	before := rest(t, servers[2].Host, "the first key", on).Keys[0].Name

	down := servers[2]
	down.Kill9()
	rotating := servers[1].Host.Kedge(t.Context(), "secrets-encrypt", "rotate")
	if err := rotating.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, cluster.Patience, "the rotation to begin", func() error {
		output, err := run(servers[1].Host, "status")
		if err == nil && !strings.Contains(output, "rewriting") {
			err = errors.New(output)
		}
		return err
	})
	add(t, first, "of-server-1")
	add(t, servers[1], "of-server-2")
	wantAll(t, first)
	down.Start()
	down.WaitAPI()
	// The server that would complete the change is killed.
	first.Kill9()
	add(t, down, "of-server-3")
	wantAll(t, down)
	first.Start()
	first.WaitAPI()
	for _, server := range servers {
		s := rest(t, server.Host, "the end of the rotation", on)
		if s.Keys[0].Name == before {
			t.Errorf("%s has the old key", server.Host.Name)
		}
		if len(s.Servers) != len(servers) {
			t.Errorf("%s knows of the servers %v", server.Host.Name, s.Servers)
		}
		wantAll(t, server)
	}
	if err := rotating.Wait(); err != nil {
		t.Errorf("the command that began the rotation: %v", err)
	}
	t.Logf("%s", must(t, servers[2].Host, "status"))
	stop()
}
